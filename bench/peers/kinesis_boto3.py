"""boto3 reading a stream alone: `kinesis_boto3.py ENDPOINT STREAM RECORDS` in an environment that has it.

A thread for each shard asks for as many records as there are per request, without any pause, until all were
read. Prints the seconds and the bytes.
"""

from __future__ import annotations

import sys
import threading
import time

import boto3  # pyright: ignore


def main() -> None:
    endpoint, stream, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = boto3.client(  # pyright: ignore
        "kinesis",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    counts: list[int] = []
    sizes: list[int] = []

    def read(shard: str) -> None:
        place = {"StreamName": stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = client.get_shard_iterator(**place)["ShardIterator"]  # pyright: ignore
        while sum(counts) < records:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)  # pyright: ignore
            iterator = answer["NextShardIterator"]
            counts.append(len(answer["Records"]))  # pyright: ignore
            sizes.append(sum(len(record["Data"]) for record in answer["Records"]))  # pyright: ignore
            if not answer["Records"]:
                time.sleep(0.05)

    shards = client.list_shards(StreamName=stream)["Shards"]  # pyright: ignore
    began = time.monotonic()
    threads = [threading.Thread(target=read, args=(shard["ShardId"],)) for shard in shards]  # pyright: ignore
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(time.monotonic() - began, sum(sizes))


main()
