//! A proxy that hurts connections at chosen bytes: it delays, cuts or holds them back, in either direction alone, and
//! never reorders or changes a byte.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use super::Random;

/// Way of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// Hurt of a connection, after so many bytes of one direction have been passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hurt {
    /// Both ends are closed (FIN).
    Close,
    /// Both ends are reset (RST): bytes that they have not read are lost.
    Reset,
    /// The receiver sees the end of this direction; the other one goes on, and what still comes in this one is lost.
    HalfClose,
    /// Nothing more is passed on in this direction; nobody is told.
    Stall,
    /// As [`Stall`](Self::Stall), in both directions.
    Silence,
    /// The rest is passed on after a pause.
    Delay(Duration),
}

/// A hurt and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) direction: Direction,
    /// Number of bytes that are passed on before.
    pub(crate) after: usize,
    pub(crate) hurt: Hurt,
}

/// Treatment of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Treatment {
    pub(crate) fault: Option<Fault>,
    /// Size of the pieces in which bytes are passed on; 0 for any.
    pub(crate) piece: usize,
}

/// A proxy in front of a server. Dropping it closes its connections, and refuses new ones.
pub(crate) struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

struct Shared {
    server: SocketAddr,
    plan: Mutex<Box<dyn FnMut(usize) -> Treatment + Send>>,
    /// Bytes passed on over each connection, to the server and to the client.
    carried: Mutex<Vec<[usize; 2]>>,
}

impl FaultProxy {
    /// Opens a proxy, whose connections are treated as `plan` says of each: the first is number 0.
    pub(crate) async fn to(
        server: SocketAddr,
        plan: impl FnMut(usize) -> Treatment + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server,
            plan: Mutex::new(Box::new(plan)),
            carried: Mutex::default(),
        });
        let task = tokio::spawn(accept(listener, shared.clone())).abort_handle();
        Self {
            address,
            shared,
            task,
        }
    }

    /// The address of this end, as `host:port`.
    pub(crate) fn hosts(&self) -> String {
        self.address.to_string()
    }

    /// The URL of the server, through this.
    pub(crate) fn url(&self) -> String {
        format!("lockkeeper://{}", self.address)
    }

    /// Lets all later connections pass unhurt.
    pub(crate) fn heal(&self) {
        *self.shared.plan.lock().unwrap() = Box::new(|_| Treatment::default());
    }

    /// Returns the bytes passed on over each connection so far, to the server and to the client.
    pub(crate) fn carried(&self) -> Vec<[usize; 2]> {
        self.shared.carried.lock().unwrap().clone()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends them.
    let mut connections = JoinSet::new();
    for number in 0.. {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let treatment = (shared.plan.lock().unwrap())(number);
        shared.carried.lock().unwrap().push([0; 2]);
        let connection = Connection {
            shared: shared.clone(),
            number,
            treatment,
        };
        connections.spawn(async move {
            if let Ok(server) = TcpStream::connect(connection.shared.server).await {
                connection.carry(client, server).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Connection {
    shared: Arc<Shared>,
    number: usize,
    treatment: Treatment,
}

/// End of one direction.
enum End {
    /// Its sender has closed it, or its receiver no longer takes bytes.
    Closed,
    Hurt(Hurt),
}

impl Connection {
    async fn carry(&self, client: TcpStream, server: TcpStream) {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        let end = {
            let out = self.one_way(Direction::ToServer, &mut from_client, &mut to_server);
            let back = self.one_way(Direction::ToClient, &mut from_server, &mut to_client);
            tokio::select! {
                end = out => end,
                end = back => end,
            }
        };
        match end {
            End::Hurt(Hurt::Reset) => {
                let client = from_client.reunite(to_client).expect("its halves");
                let server = from_server.reunite(to_server).expect("its halves");
                for stream in [client, server] {
                    // A socket that is closed with no time to linger resets its connection.
                    stream.set_zero_linger().unwrap();
                }
            }
            End::Hurt(Hurt::Silence) => std::future::pending().await,
            // Both ends are closed as they are dropped.
            _ => {}
        }
    }

    /// Passes bytes on until the connection ends.
    async fn one_way(
        &self,
        direction: Direction,
        from: &mut OwnedReadHalf,
        to: &mut OwnedWriteHalf,
    ) -> End {
        let mut fault = self.treatment.fault;
        fault = fault.filter(|fault| fault.direction == direction);
        let mut carried = 0;
        let mut buffer = vec![0; 4 << 10];
        loop {
            if let Some(Fault { hurt, .. }) = fault.filter(|fault| fault.after <= carried) {
                match hurt {
                    Hurt::Close | Hurt::Reset | Hurt::Silence => return End::Hurt(hurt),
                    Hurt::HalfClose | Hurt::Stall => {
                        if hurt == Hurt::HalfClose {
                            let _ = to.shutdown().await;
                        }
                        // Whatever still comes is lost, until the other direction ends.
                        while from.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
                        return End::Closed;
                    }
                    Hurt::Delay(pause) => tokio::time::sleep(pause).await,
                }
                fault = None;
            }
            let mut room = match self.treatment.piece {
                0 => buffer.len(),
                piece => piece.min(buffer.len()),
            };
            if let Some(fault) = fault {
                room = room.min(fault.after - carried);
            }
            let read = match from.read(&mut buffer[..room]).await {
                Ok(read) if read > 0 => read,
                _ => return End::Closed,
            };
            if to.write_all(&buffer[..read]).await.is_err() {
                return End::Closed;
            }
            carried += read;
            self.shared.carried.lock().unwrap()[self.number][direction as usize] += read;
        }
    }
}

impl Treatment {
    /// Nothing is ever passed on.
    pub(crate) fn silent() -> Self {
        Self::of(Direction::ToServer, 0, Hurt::Silence)
    }

    /// Both ends are closed when the client has sent so many bytes.
    pub(crate) fn closed_after(bytes: usize) -> Self {
        Self::of(Direction::ToServer, bytes, Hurt::Close)
    }

    pub(crate) fn of(direction: Direction, after: usize, hurt: Hurt) -> Self {
        let fault = Fault {
            direction,
            after,
            hurt,
        };
        Self {
            fault: Some(fault),
            piece: 0,
        }
    }

    /// A random treatment of a connection whose longer direction carries about `bytes`. A stall may last until the
    /// client gives the connection up: it is the rarest.
    pub(crate) fn random(random: &mut Random, bytes: usize) -> Self {
        let hurt = match random.below(16) {
            0..4 => Hurt::Close,
            4..8 => Hurt::Reset,
            8..11 => Hurt::HalfClose,
            11 => Hurt::Stall,
            12 => Hurt::Silence,
            _ => Hurt::Delay(Duration::from_millis(random.below(200))),
        };
        let direction = match random.below(2) {
            0 => Direction::ToServer,
            _ => Direction::ToClient,
        };
        Self {
            fault: Some(Fault {
                direction,
                after: random.index(bytes),
                hurt,
            }),
            piece: [0, 0, 1, 3, 17][random.index(5)],
        }
    }
}
