//! The server's side of the four-letter words: reads one, sends its text, closes the connection.

pub(super) mod process;
mod texts;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::texts::Texts;
use super::connection_table::ConnectionGuard;
use super::stats::Sources;
use super::transport::linger_close;
use crate::wire::admin::{IMOK, NOT_SERVING, Whitelist, Word, isro};

/// Answers the four-letter words of a server.
pub(super) struct Admin {
    words: Whitelist,
    texts: Arc<Texts>,
    /// Limits the long texts that are composed at the same time, and so their memory.
    permits: Arc<Semaphore>,
}

/// Addresses on which a server listens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenAddresses {
    pub(super) plain: Option<SocketAddr>,
    pub(super) tls: Option<SocketAddr>,
}

/// Text of a word, with the permit that is given back once it has been sent.
struct Answer {
    text: Cow<'static, str>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Limit of long texts at the same time.
const LONG_TEXTS: usize = 2;

impl Admin {
    pub(super) fn new(sources: Arc<Sources>, words: Whitelist, addresses: ListenAddresses) -> Self {
        Self {
            words,
            texts: Arc::new(Texts::new(sources, addresses)),
            permits: Arc::new(Semaphore::new(LONG_TEXTS)),
        }
    }

    /// Answers a word, and closes the connection so that the answer arrives.
    pub(super) async fn serve_word<S>(&self, word: Word, stream: &mut S, guard: &ConnectionGuard)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        guard.record_word(word.letters().len());
        let answer = self.answer(word).await;
        if stream.write_all(answer.text.as_bytes()).await.is_ok() {
            // Before the linger: a client that keeps its end open must not hold one of the few permits.
            drop(answer);
            linger_close(stream).await;
        }
    }

    async fn answer(&self, word: Word) -> Answer {
        if !self.words.allows(word) {
            return Answer::short(word.refusal());
        }
        let is_at_work = self.texts.is_at_work();
        match word {
            Word::Ruok => return Answer::short(IMOK),
            Word::Isro => return Answer::short(isro(is_at_work)),
            _ if !is_at_work => return Answer::short(NOT_SERVING),
            _ => {}
        }
        let permit = match is_long(word) {
            true => self.permits.clone().acquire_owned().await.ok(),
            false => None,
        };
        let texts = self.texts.clone();
        // Reads files, or much of the store: not for a thread of the runtime.
        let text = tokio::task::spawn_blocking(move || texts.of(word)).await;
        Answer {
            text: text.unwrap_or_default().into(),
            _permit: permit,
        }
    }
}

impl Answer {
    fn short(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            _permit: None,
        }
    }
}

/// Returns true if a word's text grows with the number of connections, sessions or watches.
fn is_long(word: Word) -> bool {
    matches!(
        word,
        Word::Stat | Word::Cons | Word::Dump | Word::Wchs | Word::Wchc | Word::Wchp
    )
}
