//! Money goes between accounts, under the locks of both: `lock_all`, named in opposite orders.
//!
//! ```text
//! cargo run --release --example transfer
//! cargo run --release --example transfer -- --url zookeeper://127.0.0.1:2181
//! ```
//!
//! Half of the tellers lock the payer first, the other half the payee. With one lock after the other
//! they would soon wait for each other for ever; `lock_all` joins both queues in one step, so they
//! cannot. The program checks each account and the sum, that no two tellers are ever at one account,
//! and that all comes to an end in time; it exits with 1 when something is wrong.

#[path = "common/args.rs"]
mod args;

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper::{Client, ConnectOptions, FencingGate, FencingToken, LockPath, Target};
use lockkeeper::{connect_with, lock_all};

const ACCOUNTS: usize = 4;
const TELLERS: usize = 6;
const TRANSFERS_EACH: usize = 20;
const OPENING_CENTS: i64 = 100_000;
/// The transfers that are told one by one.
const TOLD_EACH: usize = 2;
/// Nothing here takes that long: who waits longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ABOUT: &str =
    "Money goes between accounts, under the locks of both, named in opposite orders.";

fn main() -> ExitCode {
    let target = match args::target(ABOUT) {
        Ok(target) => target,
        Err(status) => return status,
    };
    match show(&target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("transfer: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the locks protect. Each account knows nothing of the others, nor of the locks: it checks the
/// token of whoever comes.
struct Account {
    cents: i64,
    expected_cents: i64,
    gate: FencingGate,
    teller: Option<usize>,
}

impl Account {
    /// A teller sits down at the account.
    fn enter(&mut self, teller: usize, token: FencingToken) -> Outcome<i64> {
        if let Some(other) = self.teller.replace(teller) {
            return Err(format!("tellers {other} and {teller} are at one account").into());
        }
        self.gate.admit(token)?;
        Ok(self.cents)
    }

    /// It writes what it has reckoned, and goes.
    fn leave(&mut self, cents: i64, change: i64, token: FencingToken) -> Outcome {
        self.gate.admit(token)?;
        self.cents = cents;
        self.expected_cents += change;
        self.teller = None;
        Ok(())
    }
}

/// The accounts of this run, and the locks that stand for them.
struct Bank {
    accounts: Vec<Mutex<Account>>,
    locks: LockPath,
}

impl Bank {
    fn open() -> Outcome<Self> {
        let account = |_| {
            Mutex::new(Account {
                cents: OPENING_CENTS,
                expected_cents: OPENING_CENTS,
                gate: FencingGate::default(),
                teller: None,
            })
        };
        Ok(Self {
            accounts: (0..ACCOUNTS).map(account).collect(),
            locks: LockPath::new(format!("/transfer-{}", std::process::id()))?,
        })
    }

    fn at<T>(&self, account: usize, work: impl FnOnce(&mut Account) -> T) -> T {
        work(&mut self.accounts[account].lock().expect("no teller panics"))
    }

    fn lock_of(&self, account: usize) -> LockPath {
        self.locks.key(&format!("account-{account}"))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn show(target: &Target) -> Outcome {
    println!(
        "{TELLERS} tellers make {TRANSFERS_EACH} transfers each between {ACCOUNTS} accounts. \
         Even ones lock the payer first, odd ones the payee."
    );
    let bank = Arc::new(Bank::open()?);
    let mut tellers = Vec::new();
    for teller in 0..TELLERS {
        let client = connect_with(target.clone(), ConnectOptions::new().create_chroot()).await?;
        tellers.push(tokio::spawn(work(client, bank.clone(), teller)));
    }
    let done = async {
        for teller in tellers {
            teller.await??;
        }
        Outcome::Ok(())
    };
    let in_time = tokio::time::timeout(PATIENCE, done).await;
    in_time.map_err(|_| format!("the tellers are stuck: not done after {PATIENCE:?}"))??;
    check(&bank)
}

async fn work(client: Client, bank: Arc<Bank>, teller: usize) -> Outcome {
    for number in 0..TRANSFERS_EACH {
        let payer = (teller + number) % ACCOUNTS;
        let payee = (payer + 1 + number % (ACCOUNTS - 1)) % ACCOUNTS;
        let cents = i64::try_from(100 * (teller + 1) + number)?;
        let named = if teller.is_multiple_of(2) {
            [payer, payee]
        } else {
            [payee, payer]
        };
        let guard = lock_all(&client, named.map(|account| bank.lock_of(account))).await?;
        let token = guard.fencing_token();
        let paid = bank.at(payer, |account| account.enter(teller, token))?;
        let received = bank.at(payee, |account| account.enter(teller, token))?;
        // Whoever else were here now would work with the same balances.
        tokio::task::yield_now().await;
        bank.at(payer, |account| account.leave(paid - cents, -cents, token))?;
        bank.at(payee, |account| {
            account.leave(received + cents, cents, token)
        })?;
        guard.release().await?;
        if number < TOLD_EACH {
            println!(
                "  teller {teller} locked accounts {} and {}, and moved {cents} cents from {payer} to \
                 {payee} under token {token}",
                named[0], named[1]
            );
        }
    }
    println!("  teller {teller} is done");
    client.close().await?;
    Ok(())
}

fn check(bank: &Bank) -> Outcome {
    let mut sum = 0;
    for account in 0..ACCOUNTS {
        let (cents, expected) = bank.at(account, |it| (it.cents, it.expected_cents));
        println!("Account {account} has {cents} cents.");
        if cents != expected {
            return Err(format!("account {account} should have {expected} cents").into());
        }
        sum += cents;
    }
    let expected = OPENING_CENTS * i64::try_from(ACCOUNTS)?;
    if sum != expected {
        return Err(format!("the sum is {sum} cents and should be {expected}").into());
    }
    let count = TELLERS * TRANSFERS_EACH;
    println!(
        "All {count} transfers are done, nobody was stuck, and the sum is what it was: {sum} cents."
    );
    Ok(())
}
