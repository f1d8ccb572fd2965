#if !Postgres
// Without the trait Postgres this module has no functions, and a package that depends on it needs no libpq. If a
// program uses the module without the trait, the declaration below produces a compiler error that names the trait.

/// Durable work; needs the trait Postgres.
@available(*, unavailable, message: "CoroutineWork needs the trait Postgres: .package(…, traits: [\"Postgres\"])")
public enum Work {}
#endif
