//! The well-known reader of CDCv2: differential-dataflow's `capture::iterator::Iter`, on the messages that
//! `bench_cdcv2` measures ours with.
//!
//! `capture MESSAGES TIMES PER_TIME`: MESSAGES is a file of little-endian 64-bit words. A word n > 0 begins a message
//! of n updates, whose numbers follow; a zero begins a statement, whose time follows. Update i has the row
//! (i, "name {i % 1000}", i / 4) and the time i / PER_TIME. Prints one line of JSON: the updates that came out, the
//! seconds without those in which messages were made, and the largest size of this process.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read};
use std::time::{Duration, Instant};

use differential_dataflow::capture::iterator::Iter;
use differential_dataflow::capture::{Message, Progress};

/// The amount is compared and hashed by its bits: a float is neither here.
type Row = (i64, String, u64);
type Said = Message<Row, u64, i64>;

struct Messages<'a> {
    file: BufReader<File>,
    times: u64,
    per_time: u64,
    making: &'a std::cell::Cell<Duration>,
}

impl Messages<'_> {
    fn word(&mut self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact(&mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn made(&mut self) -> Option<Said> {
        let count = self.word()?;
        if count == 0 {
            let time = self.word()?;
            let upper = if time + 1 < self.times { vec![time + 1] } else { vec![] };
            let counts = vec![(time, self.per_time as usize)];
            return Some(Message::Progress(Progress { lower: vec![time], upper, counts }));
        }
        let mut updates = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let i = self.word()?;
            let row = (i as i64, format!("name {}", i % 1000), (i as f64 / 4.0).to_bits());
            updates.push((row, i / self.per_time, 1));
        }
        Some(Message::Updates(updates))
    }
}

impl Iterator for Messages<'_> {
    type Item = Said;

    fn next(&mut self) -> Option<Said> {
        let began = Instant::now();
        let message = self.made();
        self.making.set(self.making.get() + began.elapsed());
        message
    }
}

/// The largest size so far, in kilobytes; 0 where the system does not tell.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or("");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 4 {
        return Err("usage: capture MESSAGES TIMES PER_TIME".into());
    }
    let making = std::cell::Cell::new(Duration::ZERO);
    let messages = Messages {
        file: BufReader::with_capacity(1 << 20, File::open(&arguments[1])?),
        times: arguments[2].parse()?,
        per_time: arguments[3].parse()?,
        making: &making,
    };
    let began = Instant::now();
    let mut released = 0;
    for (updates, _) in Iter::new(messages) {
        released += updates.len();
    }
    let seconds = (began.elapsed() - making.get()).as_secs_f64();
    println!("{{\"released\": {released}, \"seconds\": {seconds}, \"peak_kb\": {}}}", peak());
    Ok(())
}
