#if Postgres
// Version 1 of the tables. One file is one version, and a version that was published is never changed.
//
// It was changed before the first release: durable actors are gone, and with them their table `actor`, the column
// `job.result` and the index `job_identity`. A database that has them keeps them. No statement names them, and the
// column may be null, so the program works with both forms.
//
// What the indexes and the options are for:
// - `job_ready` is what a claim reads, in the order in which jobs are due. It has no other rows, so it stays small
//   however many completed jobs are kept.
// - `job_due` finds scheduled and retryable jobs whose time has come, `job_lease` the leases that have ended.
// - `job_unique` refuses the second unfinished job of a key.
// - `job_key` finds earlier jobs of the same key. `job_key_runs` is the last guard of "one at a time": two claims
//   that have not seen each other cannot both run jobs of one key.
// - `job_ended` finds what is to be deleted.
// - The fill factor leaves room on each page for the next version of a row, and dead rows are removed early: each job
//   is updated twice at least.

enum Version1 {
  /// The statements, for `{schema}`.
  static let statements = [
    "create schema if not exists {schema}",
    "create table {schema}.version (version int not null, major int not null)",
    "create sequence {schema}.fence",
    "create table {schema}.queue (name text primary key, paused boolean not null default false)",
    """
    create table {schema}.job (
      id bigint generated always as identity primary key,
      queue text not null,
      state text not null check (state in
        ('available', 'scheduled', 'running', 'retryable', 'completed', 'discarded', 'cancelled')),
      priority int not null default 0,
      at timestamptz not null default now(),
      attempt int not null default 0,
      attempts int not null,
      payload jsonb not null,
      unique_key text,
      order_key text,
      fence bigint,
      lease_ends timestamptz,
      cancel_asked boolean not null default false,
      worker text,
      checkpoint bytea,
      errors text[] not null default '{}',
      enqueued_at timestamptz not null default now(),
      ended_at timestamptz
    ) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)
    """,
    "create index job_ready on {schema}.job (queue, priority, at, id) where state = 'available'",
    "create index job_due on {schema}.job (queue, at) where state in ('scheduled', 'retryable')",
    "create index job_lease on {schema}.job (queue, lease_ends) where state = 'running'",
    """
    create unique index job_unique on {schema}.job (queue, unique_key)
      where state in ('available', 'scheduled', 'running', 'retryable')
    """,
    """
    create index job_key on {schema}.job (queue, order_key, id)
      where order_key is not null and state in ('available', 'scheduled', 'running', 'retryable')
    """,
    """
    create unique index job_key_runs on {schema}.job (queue, order_key)
      where order_key is not null and state = 'running'
    """,
    "create index job_ended on {schema}.job (queue, state, ended_at) where ended_at is not null",
    // One row for each key: who adds a job of that key locks it, so that ids and commits have the same order.
    """
    create table {schema}.key (
      queue text not null, key text not null, used_at timestamptz not null default now(), primary key (queue, key)
    ) with (fillfactor = 70)
    """,
    """
    create table {schema}.schedule (
      queue text not null, name text not null, rule text not null, last_tick timestamptz not null,
      primary key (queue, name)
    )
    """,
    // Never deleted: a lease that was created again would begin with a smaller fence.
    """
    create table {schema}.lease (
      name text primary key, fence bigint not null, holder text, ends timestamptz not null
    ) with (fillfactor = 50)
    """,
    "insert into {schema}.version (version, major) values (1, 1)",
  ]
}
#endif
