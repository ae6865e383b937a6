//! The bare ceiling of a catch-up: reads a topic to its end with librdkafka, parses each JSON value and keeps the
//! last one of each key in a hash map. Nothing is durable, nothing is ordered by time, nothing can be queried.
//!
//! `ceiling BOOTSTRAP TOPIC OUT`: prints one line of JSON with the messages and the seconds, and writes the map to
//! OUT as lines of JSON, to be checked. Without OUT values are neither parsed nor kept: the speed of reading alone.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

/// A broker that says nothing for so long is gone.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize, Serialize)]
struct Row {
    id: i64,
    name: String,
    amount: f64,
    state: i64,
    at: i64,
    n: i64,
    note: String,
}

#[derive(Serialize)]
struct Line<'a> {
    key: &'a str,
    #[serde(flatten)]
    row: &'a Row,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if !(3..=4).contains(&arguments.len()) {
        return Err("usage: ceiling BOOTSTRAP TOPIC [OUT]".into());
    }
    let (bootstrap, topic, out) = (&arguments[1], &arguments[2], arguments.get(3));
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "ceiling")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("fetch.queue.backoff.ms", "1")
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let mut ends: HashMap<i32, i64> = HashMap::new();
    let mut wanted = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        let (low, high) = consumer.fetch_watermarks(topic, partition.id(), PATIENCE)?;
        if high > low {
            ends.insert(partition.id(), high);
            wanted.add_partition_offset(topic, partition.id(), Offset::Offset(low))?;
        }
    }

    let began = Instant::now();
    consumer.assign(&wanted)?;
    let mut rows: HashMap<Vec<u8>, Row> = HashMap::new();
    let mut messages: u64 = 0;
    while !ends.is_empty() {
        let message = consumer.poll(PATIENCE).ok_or("the broker does not answer")??;
        messages += 1;
        if out.is_some() {
            let key = message.key().ok_or("a message without a key")?;
            match message.payload() {
                Some(value) => {
                    rows.insert(key.to_vec(), serde_json::from_slice(value)?);
                }
                None => {
                    rows.remove(key);
                }
            }
        }
        let next = message.offset() + 1;
        if ends.get(&message.partition()).is_some_and(|end| next >= *end) {
            ends.remove(&message.partition());
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{{\"messages\": {messages}, \"seconds\": {seconds}}}");

    if let Some(path) = out {
        let mut file = BufWriter::new(File::create(path)?);
        for (key, row) in &rows {
            serde_json::to_writer(&mut file, &Line { key: std::str::from_utf8(key)?, row })?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
    }
    Ok(())
}
