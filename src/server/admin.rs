//! The four-letter words: reads a word, sends its answer and closes the connection.

pub(super) mod process;
mod texts;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::texts::Texts;
use super::connection_table::ConnectionGuard;
use super::drain::Drain;
use super::stats::Sources;
use super::transport::linger_close;
use super::{AuditEvent, Shared};
use crate::wire::admin::{IMOK, NOT_SERVING, Word, isro};

pub(super) struct Admin {
    texts: Arc<Texts>,
    /// Limits how many long texts exist at the same time, and so how much memory they use.
    permits: Arc<Semaphore>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ListenAddresses {
    pub(super) plain: Option<SocketAddr>,
    pub(super) tls: Option<SocketAddr>,
}

struct Answer {
    text: Cow<'static, str>,
    _permit: Option<OwnedSemaphorePermit>,
}

const LONG_TEXTS: usize = 2;

impl Admin {
    pub(super) fn new(sources: Arc<Sources>, addresses: ListenAddresses) -> Self {
        Self {
            texts: Arc::new(Texts::new(sources, addresses)),
            permits: Arc::new(Semaphore::new(LONG_TEXTS)),
        }
    }

    pub(super) async fn serve_word<S>(
        &self,
        word: Word,
        stream: &mut S,
        guard: &ConnectionGuard,
        shared: &Shared,
    ) where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        guard.record_word(word.letters().len());
        let policy = shared.access.policy();
        let is_allowed = policy.words.allows(word) && policy.answers_words_of(guard.address());
        let answer = match is_allowed {
            true => self.answer(word, &shared.drain).await,
            false => {
                shared
                    .audit
                    .failure(AuditEvent::FourLetterWord, guard.address(), |record| {
                        record.word = Some(word.letters());
                    });
                Answer::short(word.refusal())
            }
        };
        if stream.write_all(answer.text.as_bytes()).await.is_ok() {
            // Release the permit before lingering, because a client that keeps its end open must not hold a permit.
            drop(answer);
            linger_close(stream).await;
        }
    }

    pub(super) fn text(&self, word: Word, drain: &Drain) -> String {
        let is_at_work = self.texts.is_at_work();
        match word {
            Word::Ruok => IMOK.into(),
            Word::Isro => isro(is_at_work && !drain.is_on()).into(),
            _ if !is_at_work => NOT_SERVING.into(),
            _ => self.texts.of(word),
        }
    }

    async fn answer(&self, word: Word, drain: &Drain) -> Answer {
        let is_at_work = self.texts.is_at_work();
        match word {
            Word::Ruok => return Answer::short(IMOK),
            // Load balancers send this word, and must not direct clients to a server that admits no sessions.
            Word::Isro => return Answer::short(isro(is_at_work && !drain.is_on())),
            _ if !is_at_work => return Answer::short(NOT_SERVING),
            _ => {}
        }
        let permit = match is_long(word) {
            true => self.permits.clone().acquire_owned().await.ok(),
            false => None,
        };
        let texts = self.texts.clone();
        // Use a blocking thread, because composing the text may read files or much of the store.
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

fn is_long(word: Word) -> bool {
    matches!(
        word,
        Word::Stat | Word::Cons | Word::Dump | Word::Wchs | Word::Wchc | Word::Wchp
    )
}
