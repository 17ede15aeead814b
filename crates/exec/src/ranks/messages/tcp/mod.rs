//! Messages over TCP: one connection between each two ranks.
//!
//! ```text
//! frame      length (4 bytes) · head and body of a message        a length of 0 is the farewell
//! ```
//!
//! `torchrun`, and Slurm with two variables, start processes that have no MPI in common. They know one address, that of rank 0
//! ([`meeting`](self::meeting)). A process that is killed closes its connections, so the others find that out at once.
//!
//! Absent on purpose: secrecy and proof of who is calling. As with PyTorch's own ranks, the network between the machines is trusted.

mod meeting;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes as _;

use super::super::Communicator;
use super::wire::{Wire, message_bytes};
use super::{PAUSE, message_rank};
use crate::ExecError;
pub use meeting::Meeting;

/// Bytes in front of a frame.
const LENGTH: usize = 4;
/// How long a rank that has ended well waits for the others to end.
const FAREWELL: Duration = Duration::from_secs(30);

/// This process's end of a world of processes that meet at an address. Waits until all of them have come. A rank waits for
/// the others for `limit` in an exchange.
///
/// # Errors
///
/// When the processes do not meet, or the system refuses a thread.
pub fn tcp_rank(meeting: Meeting, limit: Duration) -> Result<Arc<dyn Communicator>, ExecError> {
    message_rank(limit, move || {
        let streams = meeting.meet()?;
        TcpWire::new(&meeting, streams)
            .map_err(|error| ExecError::Device(format!("ranks cannot meet: {error}")))
    })
}

/// Connections to all other ranks.
struct TcpWire {
    rank: usize,
    arenas_ahead: usize,
    /// The other ranks by number; `None` stands for this rank.
    peers: Vec<Option<Peer>>,
}

/// The connection to one other rank.
struct Peer {
    stream: TcpStream,
    /// Frames that were not sent yet, from byte `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    length: [u8; LENGTH],
    /// The message that is coming or has come.
    inbox: Vec<u64>,
    /// Bytes of the frame that have arrived, its length included.
    come: usize,
    /// Whether the other rank has said that it ends.
    ended: bool,
}

impl TcpWire {
    fn new(meeting: &Meeting, streams: Vec<Option<TcpStream>>) -> std::io::Result<TcpWire> {
        let words = message_bytes(meeting.ranks).div_ceil(size_of::<u64>());
        let peers =
            streams.into_iter().map(|stream| stream.map(|stream| Peer::new(stream, words)).transpose());
        let peers = peers.collect::<std::io::Result<_>>()?;
        Ok(TcpWire { rank: meeting.rank, arenas_ahead: meeting.arenas_ahead, peers })
    }

    fn peer(&mut self, rank: usize) -> Result<&mut Peer, String> {
        self.peers
            .get_mut(rank)
            .and_then(Option::as_mut)
            .ok_or_else(|| format!("there is no other rank {rank}"))
    }

    /// Ranks, each with its connection.
    fn each(&mut self) -> impl Iterator<Item = (usize, &mut Peer)> {
        self.peers.iter_mut().enumerate().filter_map(|(rank, peer)| Some((rank, peer.as_mut()?)))
    }
}

impl Wire for TcpWire {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn arenas_ahead(&self) -> usize {
        self.arenas_ahead
    }

    fn send(&mut self, to: usize, head: &[u8], body: &[u8]) -> Result<(), String> {
        let peer = self.peer(to)?;
        peer.enqueue(&[head, body]);
        peer.flush().map_err(|error| lost(to, &error))
    }

    fn sending_to(&mut self) -> Result<Option<usize>, String> {
        let mut busy = None;
        for (rank, peer) in self.each() {
            peer.flush().map_err(|error| lost(rank, &error))?;
            busy = busy.or((!peer.outgoing.is_empty()).then_some(rank));
        }
        Ok(busy)
    }

    fn receive(&mut self, from: usize) -> Result<bool, String> {
        self.peer(from)?.receive().map_err(|error| lost(from, &error))
    }

    fn inbox(&self, from: usize) -> &[u8] {
        self.peers[from].as_ref().map_or(&[], Peer::message)
    }

    fn close(mut self) {
        for (_, peer) in self.each() {
            peer.enqueue(&[]);
        }
        let begin = Instant::now();
        let under_way = |peer: &mut Peer| {
            // A connection that fails now belongs to a rank that has ended: all have heard that the run is over.
            let sent = peer.flush().is_err() || peer.outgoing.is_empty();
            !sent || (!peer.ended && peer.receive().is_ok())
        };
        while begin.elapsed() < FAREWELL && self.each().any(|(_, peer)| under_way(peer)) {
            std::thread::sleep(PAUSE);
        }
        for (_, peer) in self.each() {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Peer {
    fn new(stream: TcpStream, words: usize) -> std::io::Result<Peer> {
        stream.set_nonblocking(true)?;
        // Rounds of messages wait for each other; the system must not wait for more to send.
        stream.set_nodelay(true)?;
        let (outgoing, inbox) = (Vec::new(), vec![0; words]);
        Ok(Peer { stream, outgoing, sent: 0, length: [0; LENGTH], inbox, come: 0, ended: false })
    }

    /// Queues a frame of several parts.
    fn enqueue(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.outgoing.extend_from_slice(&(length as u32).to_le_bytes());
        for part in parts {
            self.outgoing.extend_from_slice(part);
        }
    }

    /// Sends as much as the connection takes.
    fn flush(&mut self) -> std::io::Result<()> {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Whether the next message has come whole.
    fn receive(&mut self) -> std::io::Result<bool> {
        if self.come == LENGTH + self.announced() {
            self.come = 0;
        }
        while !self.ended {
            let (announced, come) = (self.announced(), self.come);
            if come >= LENGTH && announced == 0 {
                self.ended = true;
            } else if come >= LENGTH && come == LENGTH + announced {
                return Ok(true);
            } else if !self.read()? {
                break;
            }
        }
        Ok(false)
    }

    /// Reads more of a frame; false where no more has come.
    fn read(&mut self) -> std::io::Result<bool> {
        let announced = self.announced();
        let message = self.inbox.as_mut_slice().as_mut_bytes();
        let room = match self.come.checked_sub(LENGTH) {
            None => &mut self.length[self.come..],
            Some(_) if announced > message.len() => {
                let why = format!("it announced a message of {announced} bytes, more than any has");
                return Err(std::io::Error::new(ErrorKind::InvalidData, why));
            }
            Some(come) => &mut message[come..announced],
        };
        match self.stream.read(room) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.come += count;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Bytes of the frame whose length has come; 0 before that.
    fn announced(&self) -> usize {
        if self.come < LENGTH { 0 } else { u32::from_le_bytes(self.length) as usize }
    }

    fn message(&self) -> &[u8] {
        &self.inbox.as_slice().as_bytes()[..self.announced()]
    }
}

/// The fault that a connection to a rank has ended.
fn lost(rank: usize, error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!("rank {rank} has closed its connection: its process or its machine is gone")
        }
        _ => format!("rank {rank} has a connection that fails: {error}"),
    }
}
