"""Others that do what the Kafka source does, to be measured beside it on the same topic.

Each is a program of its own, called with a broker, a topic and a file or folder for its result; none of
them is a dependency of this package. `programs` installs and runs them.
"""
