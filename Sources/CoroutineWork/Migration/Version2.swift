#if Postgres
// Version 2 of the tables: claims need not pass over the jobs that wait behind others of their key.
//
// - `job.waits` marks a job far behind another one of its key. It is a hint that spares claims the look at it: jobs
//   without the mark are still claimed in the order of their key alone. So an old program, which neither sets nor
//   heeds it, works beside a new one.
// - `job_next` is what a claim reads. `job_ready` stays for claims of old programs.
// - `job_waiting` finds marks that have to go although no end of a job has taken them away.

enum Version2 {
  /// The statements, for `{schema}`.
  static let statements = [
    "alter table {schema}.job add column waits boolean not null default false",
    "create index job_next on {schema}.job (queue, priority, at, id) where state = 'available' and not waits",
    """
    create index job_waiting on {schema}.job (queue, order_key, id) where waits
      and state in ('available', 'scheduled', 'running', 'retryable')
    """,
    "insert into {schema}.version (version, major) values (2, 1)",
  ]
}
#endif
