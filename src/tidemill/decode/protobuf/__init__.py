"""Protobuf decoder: descriptors, the compiler for schemas in text form, and columnar reading.

`formats` opens `ProtobufDecoder`; `resolve` uses the other parts at CREATE.
"""

from tidemill.decode.protobuf.columns import columns_of
from tidemill.decode.protobuf.compiler import compiled
from tidemill.decode.protobuf.decoder import ProtobufDecoder
from tidemill.decode.protobuf.descriptors import find_message, first_message, message_at

__all__ = ["ProtobufDecoder", "columns_of", "compiled", "find_message", "first_message", "message_at"]
