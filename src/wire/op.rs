//! The operations, by ZooKeeper's numbers.

/// Declares the operations: name, number, and the letters that `cons` shows.
macro_rules! ops {
    ($($name:ident = $number:literal $letters:literal,)*) => {
        /// What a client asks for. The numbers are ZooKeeper's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is named as in ZooKeeper's ZooDefs.OpCode")]
        pub(crate) enum Op {
            $($name = $number,)*
        }

        impl Op {
            /// Every operation that this server knows.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The operation of this number.
            pub(crate) fn of(number: i32) -> Option<Self> {
                Some(match number {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }

            /// What `cons` shows as the last operation of a connection.
            pub(crate) fn letters(self) -> &'static str {
                match self {
                    $(Self::$name => $letters,)*
                }
            }
        }
    };
}

ops! {
    Create = 1 "CREA",
    Delete = 2 "DELE",
    Exists = 3 "EXIS",
    GetData = 4 "GETD",
    SetData = 5 "SETD",
    GetAcl = 6 "GETA",
    SetAcl = 7 "SETA",
    GetChildren = 8 "GETC",
    Sync = 9 "SYNC",
    Ping = 11 "PING",
    GetChildren2 = 12 "GETC",
    Check = 13 "CHEC",
    Multi = 14 "MULT",
    Create2 = 15 "CREA",
    Reconfig = 16 "RECO",
    CheckWatches = 17 "CHKW",
    RemoveWatches = 18 "REMW",
    CreateContainer = 19 "CREA",
    CreateTtl = 21 "CREA",
    MultiRead = 22 "MLTR",
    Auth = 100 "NA",
    SetWatches = 101 "SETW",
    Sasl = 102 "NA",
    GetEphemerals = 103 "GETE",
    GetAllChildrenNumber = 104 "GETACN",
    SetWatches2 = 105 "STW2",
    AddWatch = 106 "ADDW",
    WhoAmI = 107 "HOMI",
    CloseSession = -11 "CLOS",
}

impl Op {
    /// ZooKeeper's number.
    pub(crate) fn number(self) -> i32 {
        self as i32
    }

    /// Whether it makes a znode.
    pub(crate) fn is_create(self) -> bool {
        matches!(
            self,
            Self::Create | Self::Create2 | Self::CreateContainer | Self::CreateTtl
        )
    }
}
