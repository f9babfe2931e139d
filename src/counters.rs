//! What happened, as numbers with names: each is said once.

/// A structure of counters, and their list by name.
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Counters:ident { $($(#[$doc:meta])* $name:ident,)* }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[allow(missing_docs)] // named for what they count; the less obvious ones say more
        $visibility struct $Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl $Counters {
            /// All of them, by name.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Adds another's counts.
            #[allow(dead_code, reason = "not all are added up")]
            pub fn add(&mut self, other: &$Counters) {
                $(self.$name += other.$name;)*
            }
        }
    };
}
