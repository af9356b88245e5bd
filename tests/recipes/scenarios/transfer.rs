//! Transfers between accounts under the locks of both, which the tellers name in opposite orders.

use std::sync::{Arc, Mutex};

use lockkeeper::{Client, FencingGate, FencingToken, LockPath, lock_all};
use testkit::on_every_backend;

const ACCOUNTS: usize = 4;
const TELLERS: usize = 6;
const TRANSFERS_EACH: usize = 20;
const OPENING_CENTS: i64 = 100_000;

/// An account knows neither the others nor the locks. It checks each visitor's token.
struct Account {
    cents: i64,
    expected_cents: i64,
    gate: FencingGate,
    teller: Option<usize>,
}

impl Account {
    fn enter(&mut self, teller: usize, token: FencingToken) -> i64 {
        let other = self.teller.replace(teller);
        assert_eq!(other, None, "beside teller {teller} at one account");
        self.gate.admit(token).unwrap();
        self.cents
    }

    fn leave(&mut self, cents: i64, change: i64, token: FencingToken) {
        self.gate.admit(token).unwrap();
        self.cents = cents;
        self.expected_cents += change;
        self.teller = None;
    }
}

struct Bank(Vec<Mutex<Account>>);

impl Bank {
    fn open() -> Self {
        let account = |_| {
            Mutex::new(Account {
                cents: OPENING_CENTS,
                expected_cents: OPENING_CENTS,
                gate: FencingGate::default(),
                teller: None,
            })
        };
        Self((0..ACCOUNTS).map(account).collect())
    }

    fn at<T>(&self, account: usize, work: impl FnOnce(&mut Account) -> T) -> T {
        work(&mut self.0[account].lock().unwrap())
    }
}

fn lock_of(account: usize) -> LockPath {
    let locks = LockPath::new("/transfer").unwrap();
    locks.key(&format!("account-{account}"))
}

async fn work(client: Client, bank: Arc<Bank>, teller: usize) {
    for number in 0..TRANSFERS_EACH {
        let payer = (teller + number) % ACCOUNTS;
        let payee = (payer + 1 + number % (ACCOUNTS - 1)) % ACCOUNTS;
        let cents = i64::try_from(100 * (teller + 1) + number).unwrap();
        let named = match teller.is_multiple_of(2) {
            true => [payer, payee],
            false => [payee, payer],
        };
        let guard = lock_all(&client, named.map(lock_of)).await.unwrap();
        let token = guard.fencing_token();
        let paid = bank.at(payer, |account| account.enter(teller, token));
        let received = bank.at(payee, |account| account.enter(teller, token));
        // A second teller at this point would use the same balances.
        tokio::task::yield_now().await;
        bank.at(payer, |account| account.leave(paid - cents, -cents, token));
        bank.at(payee, |account| {
            account.leave(received + cents, cents, token)
        });
        guard.release().await.unwrap();
    }
    client.close().await.unwrap();
}

on_every_backend! {
    async fn transfers_in_opposite_orders_neither_deadlock_nor_lose_money(env: Env) {
        let bank = Arc::new(Bank::open());
        let mut tellers = Vec::new();
        for teller in 0..TELLERS {
            tellers.push(tokio::spawn(work(env.client().await, bank.clone(), teller)));
        }
        for teller in tellers {
            teller.await.unwrap();
        }
        let mut sum = 0;
        for account in 0..ACCOUNTS {
            let (cents, expected) = bank.at(account, |it| (it.cents, it.expected_cents));
            assert_eq!(cents, expected, "account {account}");
            sum += cents;
        }
        assert_eq!(sum, OPENING_CENTS * i64::try_from(ACCOUNTS).unwrap());
    }
}
