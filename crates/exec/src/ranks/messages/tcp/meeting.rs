//! How processes that know one address find each other.
//!
//! ```text
//! rank 0      listens at the address         hears hello of every rank      sends all of them the table
//! rank r      opens a listener of its own    hello: number, listener ──▶    ◀── where ranks 1 … N−1 listen
//!             calls ranks 1 … r−1            is called by ranks r+1 … N−1
//! ```
//!
//! The port may be taken: `torchrun` keeps a store of its own there. So rank 0 takes the first free port of a few in a row,
//! and the others try them in turn. A hello carries a mark of the run; connections that do not answer with it are closed.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use crate::ExecError;

/// Ports that rank 0 may listen at, from the stated one on.
const PORTS: u16 = 16;
/// How long a stranger may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// Bytes of a hello: mark, number of the rank, port of its listener.
const HELLO: usize = 16;
/// Bytes of an entry of the table: address and port.
const ENTRY: usize = 18;

/// Processes of one run that are to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The number of this process.
    pub rank: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// Arenas that this machine must still have room for when this rank takes its own: those of all its ranks for the
    /// first rank of a machine.
    pub arenas_ahead: usize,
    /// Name or address of the machine of rank 0, as all others reach it.
    pub address: String,
    /// The port at which they meet.
    pub port: u16,
    /// The run's name, which keeps runs at the same address apart.
    pub run: String,
    /// How long the processes wait for each other.
    pub patience: Duration,
}

impl Meeting {
    /// Connections to all other ranks, by their number.
    pub(super) fn meet(&self) -> Result<Vec<Option<TcpStream>>, ExecError> {
        let table = if self.rank == 0 { self.host() } else { self.join() };
        table.map_err(|why| {
            let Meeting { rank, ranks, address, port, .. } = self;
            ExecError::Device(format!(
                "rank {rank} of {ranks} does not meet the others at {address}:{port}: {why}"
            ))
        })
    }

    /// Rank 0: waits for all others, and tells each where the rest are.
    fn host(&self) -> Result<Vec<Option<TcpStream>>, String> {
        let deadline = Instant::now() + self.patience;
        let listener = self.listen()?;
        let mut streams: Vec<Option<TcpStream>> = (0..self.ranks).map(|_| None).collect();
        let mut table = vec![0; self.ranks * ENTRY];
        while let Some(missing) = (1..self.ranks).find(|&rank| streams[rank].is_none()) {
            let (mut stream, from) =
                accepted(&listener, deadline).map_err(|why| format!("rank {missing} has not come {why}"))?;
            // A connection without this run's mark is closed.
            let Some((rank, port)) = self.hello_of(&mut stream) else { continue };
            if (1..self.ranks).contains(&rank) && stream.write_all(&self.hello(0)).is_ok() {
                table[rank * ENTRY..][..ENTRY].copy_from_slice(&entry(SocketAddr::new(from.ip(), port)));
                streams[rank] = Some(stream);
            }
        }
        for (rank, stream) in streams.iter_mut().enumerate() {
            let told = stream.as_mut().map_or(Ok(()), |stream| stream.write_all(&table));
            told.map_err(|error| format!("rank {rank} has gone again: {error}"))?;
        }
        Ok(streams)
    }

    /// Another rank: calls rank 0, then every rank before it, and is called by those after it.
    fn join(&self) -> Result<Vec<Option<TcpStream>>, String> {
        let deadline = Instant::now() + self.patience;
        let (mut first, listener) = self.call_first(deadline)?;
        let said = |error: std::io::Error| format!("rank 0 has ended meanwhile: {error}");
        first.set_read_timeout(Some(self.patience)).map_err(said)?;
        let mut table = vec![0; self.ranks * ENTRY];
        first.read_exact(&mut table).map_err(said)?;
        let mut streams: Vec<Option<TcpStream>> = (0..self.ranks).map(|_| None).collect();
        streams[0] = Some(first);
        for (rank, stream) in streams.iter_mut().enumerate().take(self.rank).skip(1) {
            let place = address_of(&table[rank * ENTRY..][..ENTRY]);
            let lost = |error: std::io::Error| format!("rank {rank} at {place} cannot be reached: {error}");
            let mut call = TcpStream::connect_timeout(&place, left(deadline)).map_err(lost)?;
            call.write_all(&self.hello(0)).map_err(lost)?;
            *stream = Some(call);
        }
        while let Some(missing) = (1..self.ranks).find(|&rank| rank != self.rank && streams[rank].is_none()) {
            let (mut stream, _) = accepted(&listener, deadline)
                .map_err(|why| format!("rank {missing} has not called {why}"))?;
            if let Some((rank, _)) = self.hello_of(&mut stream).filter(|&(rank, _)| rank < self.ranks) {
                streams[rank] = Some(stream);
            }
        }
        Ok(streams)
    }

    /// Rank 0's listener, at the first port that is free.
    fn listen(&self) -> Result<TcpListener, String> {
        let mut places = self.places()?.into_iter().peekable();
        let listener = loop {
            let place = places.next().ok_or("all ports are taken; state another MASTER_PORT")?;
            match TcpListener::bind(place) {
                Ok(listener) => break listener,
                // The name may be that of a gateway.
                Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
                    let any: IpAddr = if place.is_ipv4() {
                        Ipv4Addr::UNSPECIFIED.into()
                    } else {
                        Ipv6Addr::UNSPECIFIED.into()
                    };
                    if let Ok(listener) = TcpListener::bind((any, place.port())) {
                        break listener;
                    }
                }
                Err(_) => {}
            }
        };
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(listener)
    }

    /// Calls rank 0 until it answers; with it the listener of this rank, at the address by which rank 0 knows it.
    fn call_first(&self, deadline: Instant) -> Result<(TcpStream, TcpListener), String> {
        let mut last = "nobody listens there".to_owned();
        loop {
            for place in self.places()? {
                match self.call(place) {
                    Ok(found) => return Ok(found),
                    Err(error) => last = error.to_string(),
                }
            }
            if left(deadline).is_zero() {
                return Err(format!("rank 0 does not answer ({last})"));
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn call(&self, place: SocketAddr) -> std::io::Result<(TcpStream, TcpListener)> {
        let mut stream = TcpStream::connect_timeout(&place, ANSWER)?;
        let listener = TcpListener::bind((stream.local_addr()?.ip(), 0))?;
        listener.set_nonblocking(true)?;
        stream.write_all(&self.hello(listener.local_addr()?.port()))?;
        match self.hello_of(&mut stream) {
            Some((0, _)) => Ok((stream, listener)),
            _ => Err(std::io::Error::other("another program listens there")),
        }
    }

    /// Where rank 0 may listen, in order.
    fn places(&self) -> Result<Vec<SocketAddr>, String> {
        let unknown = |error: std::io::Error| format!("the name is unknown: {error}");
        let found = (self.address.as_str(), self.port).to_socket_addrs().map_err(unknown)?;
        let first = found.into_iter().next().ok_or("the name has no address")?;
        let ports = (0..PORTS).filter_map(|further| self.port.checked_add(further));
        Ok(ports.map(|port| SocketAddr::new(first.ip(), port)).collect())
    }

    fn hello(&self, port: u16) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&self.mark().to_le_bytes());
        hello[8..12].copy_from_slice(&(self.rank as u32).to_le_bytes());
        hello[12..14].copy_from_slice(&port.to_le_bytes());
        hello
    }

    /// Rank and port in a hello of this run; none for any other message.
    fn hello_of(&self, stream: &mut TcpStream) -> Option<(usize, u16)> {
        let mut hello = [0; HELLO];
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        stream.read_exact(&mut hello).ok()?;
        let [mark, rank, port, _] = [&hello[..8], &hello[8..12], &hello[12..14], &hello[14..]];
        (*mark == self.mark().to_le_bytes()).then_some(())?;
        Some((u32::from_le_bytes(rank.try_into().ok()?) as usize, u16::from_le_bytes(port.try_into().ok()?)))
    }

    /// A hash that keeps this run apart from others at the same address.
    fn mark(&self) -> u64 {
        plimsoll_graph::name_hash(&format!("plimsoll ranks 1/{}/{}/{}", self.ranks, self.port, self.run))
    }
}

/// Time until a deadline.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The next caller.
fn accepted(listener: &TcpListener, deadline: Instant) -> Result<(TcpStream, SocketAddr), String> {
    loop {
        match listener.accept() {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("and the listener fails: {error}")),
        }
        if left(deadline).is_zero() {
            return Err("in time".into());
        }
        std::thread::sleep(AGAIN / 5);
    }
}

/// An entry of the table. Addresses of the old form are mapped into the new one.
fn entry(place: SocketAddr) -> [u8; ENTRY] {
    let ip = match place.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; ENTRY];
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&place.port().to_le_bytes());
    bytes
}

fn address_of(entry: &[u8]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&entry[..16]);
    let port = u16::from_le_bytes([entry[16], entry[17]]);
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
}
