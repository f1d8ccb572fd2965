#if Postgres
// Version 2 of the tables: claims need not pass over the jobs that wait behind others of their key.
//
// - `job.waits` marks a job far behind another one of its key. It is a hint that spares claims the look at it: jobs
//   without the mark are still claimed in the order of their key alone. So an old program, which neither sets nor
//   heeds it, works beside a new one.
// - `job_next` is what a claim reads. `job_ready` stays for claims of old programs.
// - `job.limit_key` is the key of a job whose queue limits keys, instead of `order_key`. `key.tokens` of its jobs might
//   begin at `tokens_at`. An old program claims such jobs without the limit. `job_limited` and `job_limited_runs` are
//   what a claim with a limit reads.
// - `job_waiting` finds marks that have to go although no end of a job has taken them away.

enum Version2 {
  /// The statements, for `{schema}`.
  static let statements = [
    "alter table {schema}.job add column waits boolean not null default false",
    "alter table {schema}.job add column limit_key text",
    "alter table {schema}.key add column tokens float8, add column tokens_at timestamptz",
    """
    create index job_next on {schema}.job (queue, priority, at, id) where state = 'available' and not waits
      and limit_key is null
    """,
    """
    create index job_waiting on {schema}.job (queue, order_key, id) where waits
      and state in ('available', 'scheduled', 'running', 'retryable')
    """,
    """
    create index job_limited on {schema}.job (queue, limit_key, priority, at, id)
      where state = 'available' and limit_key is not null
    """,
    """
    create index job_limited_runs on {schema}.job (queue, limit_key) where state = 'running' and limit_key is not null
    """,
    "insert into {schema}.version (version, major) values (2, 1)",
  ]
}
#endif
