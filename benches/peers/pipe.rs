//! A connection with pipelined requests, like common Postgres clients: one task writes all queued requests, and answers
//! arrive in the same order.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use crate::common::socket::Address;

/// Parser for a protocol's answers.
pub(crate) trait Protocol: 'static {
    type Answer: Send + 'static;

    /// Returns the first answer and its length, if it is complete.
    fn parse(bytes: &[u8]) -> Option<(usize, Self::Answer)>;
}

struct Ask<A> {
    bytes: Vec<u8>,
    answer: oneshot::Sender<A>,
}

pub(crate) struct Pipe<P: Protocol> {
    asks: mpsc::UnboundedSender<Ask<P::Answer>>,
}

impl<P: Protocol> Clone for Pipe<P> {
    fn clone(&self) -> Self {
        Self {
            asks: self.asks.clone(),
        }
    }
}

impl<P: Protocol> Pipe<P> {
    pub(crate) async fn connect(address: &Address) -> std::io::Result<Self> {
        let (reader, writer) = tokio::io::split(address.connect().await?);
        let (asks, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // When it ends, it drops the senders of the answers, so the waiting requests fail.
            let _ = carry::<P>(reader, writer, asked).await;
        });
        Ok(Self { asks })
    }

    /// Sends a request immediately. The receiver of its answer may be dropped.
    pub(crate) fn send(&self, bytes: Vec<u8>) -> oneshot::Receiver<P::Answer> {
        let (answer, answered) = oneshot::channel();
        // A failed connection drops the request together with the sender of the answer.
        let _ = self.asks.send(Ask { bytes, answer });
        answered
    }

    pub(crate) async fn ask(&self, bytes: Vec<u8>) -> P::Answer {
        self.send(bytes).await.expect("the server answers")
    }
}

async fn carry<P: Protocol>(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    mut asked: mpsc::UnboundedReceiver<Ask<P::Answer>>,
) -> std::io::Result<()> {
    let mut waiting = VecDeque::new();
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::with_capacity(64 * 1024));
    loop {
        tokio::select! {
            ask = asked.recv() => {
                let mut next = match ask {
                    Some(ask) => Some(ask),
                    None => return Ok(()),
                };
                while let Some(ask) = next {
                    outgoing.extend_from_slice(&ask.bytes);
                    waiting.push_back(ask.answer);
                    next = asked.try_recv().ok();
                }
                writer.write_all(&outgoing).await?;
                outgoing.clear();
            }
            read = reader.read_buf(&mut incoming) => {
                if read? == 0 {
                    return Ok(());
                }
                let mut taken = 0;
                while let Some((length, answer)) = P::parse(&incoming[taken..]) {
                    taken += length;
                    let to: Option<oneshot::Sender<P::Answer>> = waiting.pop_front();
                    // The requester may have dropped the receiver.
                    let _ = to.expect("it was asked for").send(answer);
                }
                incoming.drain(..taken);
            }
        }
    }
}
