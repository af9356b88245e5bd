//! The four-letter words, over their connections: a word, a text, the end.

mod process;
mod texts;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::texts::Texts;
use super::connection::linger_close;
use super::connection_table::{ConnectionGuard, ConnectionTable};
use super::unfinished::Unfinished;
use crate::engine::Store;
use crate::wire::admin::{IMOK, NOT_SERVING, Whitelist, Word, isro};

/// Answers the four-letter words of a server.
pub(super) struct Admin {
    words: Whitelist,
    texts: Arc<Texts>,
    /// Whose turn it is with a word whose text may be long: a few at once, so that they take no more
    /// memory than that.
    turns: Arc<Semaphore>,
}

/// Where a server listens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenAddresses {
    pub(super) plain: Option<SocketAddr>,
    pub(super) tls: Option<SocketAddr>,
}

/// A text, and the turn that is over when it has been sent.
struct Answer {
    text: Cow<'static, str>,
    _turn: Option<OwnedSemaphorePermit>,
}

/// How many long texts there may be at once.
const LONG_TEXTS: usize = 2;

impl Admin {
    pub(super) fn new(
        store: Store,
        table: Arc<ConnectionTable>,
        unfinished: Arc<Unfinished>,
        words: Whitelist,
        addresses: ListenAddresses,
    ) -> Self {
        Self {
            words,
            texts: Arc::new(Texts::new(store, table, unfinished, addresses)),
            turns: Arc::new(Semaphore::new(LONG_TEXTS)),
        }
    }

    /// Answers a word, and ends the connection so that the answer arrives.
    pub(super) async fn serve_word<S>(&self, word: Word, stream: &mut S, guard: &ConnectionGuard)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        guard.note_word(word.letters().len());
        let answer = self.answer(word).await;
        if stream.write_all(answer.text.as_bytes()).await.is_ok() {
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
        let turn = match is_long(word) {
            true => self.turns.clone().acquire_owned().await.ok(),
            false => None,
        };
        let texts = self.texts.clone();
        // It looks at files, or at much of the store.
        let text = tokio::task::spawn_blocking(move || texts.of(word)).await;
        Answer {
            text: text.unwrap_or_default().into(),
            _turn: turn,
        }
    }
}

impl Answer {
    fn short(text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            text: text.into(),
            _turn: None,
        }
    }
}

/// Whether a word's text grows with what the store or the server has to do.
fn is_long(word: Word) -> bool {
    matches!(
        word,
        Word::Stat | Word::Cons | Word::Dump | Word::Wchs | Word::Wchc | Word::Wchp
    )
}
