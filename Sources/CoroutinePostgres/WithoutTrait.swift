#if !Postgres
// Without the trait Postgres this module has no functions, and a package that depends on it needs no libpq. If a
// program uses the module without the trait, the declaration below produces a compiler error that names the trait.

/// Connections to a database; needs the trait Postgres.
@available(*, unavailable, message: "CoroutinePostgres needs the trait Postgres: .package(…, traits: [\"Postgres\"])")
public struct PostgresPool {
  /// Connections to a database; needs the trait Postgres.
  public init(_ server: String) throws {}
}
#endif
