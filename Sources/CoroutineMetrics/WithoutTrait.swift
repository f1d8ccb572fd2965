#if !Metrics
// Without the trait Metrics this module has no functions, and a package that depends on it does not fetch
// swift-metrics. If a program uses the module without the trait, the declaration below produces a compiler error that
// names the trait.

/// Passes the runtime's metrics on to swift-metrics; needs the trait Metrics.
@available(*, unavailable, message: "CoroutineMetrics needs the trait Metrics: .package(…, traits: [\"Metrics\"])")
public enum RuntimeReporter {}
#endif

#if !Metrics || !Postgres
/// Passes the statistics of a pool of connections on to swift-metrics; needs the traits Metrics and Postgres.
@available(*, unavailable, message: "needs two traits: .package(…, traits: [\"Metrics\", \"Postgres\"])")
public enum PostgresReporter {}

/// Passes the health of a queue on to swift-metrics; needs the traits Metrics and Postgres.
@available(*, unavailable, message: "needs two traits: .package(…, traits: [\"Metrics\", \"Postgres\"])")
public enum QueueReporter {}
#endif
