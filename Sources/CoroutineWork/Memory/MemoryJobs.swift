#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

// What the statements of queues do, on a database in memory.

extension JobTable {
  var memoryKey: MemoryState.Queue { MemoryState.Queue(schema: schema, name: queue) }
}

// MARK: - Jobs that are held

extension MemoryLink {
  func claim(_ most: Int, lease: Duration, worker: String, _ queue: MemoryState.Queue) throws -> [JobTable.Claimed] {
    try run { state, now in
      state.claim(state.ready(queue).prefix(most).map(\.id), lease: lease, worker: worker, now: now)
    }
  }

  func claim(
    _ most: Int,
    limit: WorkKeyLimit,
    after last: String?,
    lease: Duration,
    worker: String,
    _ queue: MemoryState.Queue
  ) throws -> (jobs: [JobTable.Claimed], last: String?) {
    try run { state, now in
      state.claim(most, queue, limit: limit, after: last, lease: lease, worker: worker, now: now)
    }
  }

  func extend(_ jobs: [(id: Int64, fence: Int64)], lease: Duration) throws -> [(Int64, String)] {
    try run { state, now in
      jobs.compactMap { id, fence in
        var answer = JobRules.Extension.lost
        _ = state.change(id, now: now) { job in
          answer = job.rules.extend(fence: fence, now: now, lease: lease.milliseconds * 1_000)
          return answer != .lost
        }
        switch answer {
        case .kept: return (id, "running")
        case .cancelled: return (id, "cancelled")
        case .lost: return nil
        }
      }
    }
  }

  func renew(_ id: Int64, fence: Int64, lease: Duration) throws -> Bool {
    try run { state, now in
      state.change(id, now: now) { job in
        !job.rules.isCancelAsked
          && job.rules.extend(fence: fence, now: now, lease: lease.milliseconds * 1_000) == .kept
      }
    }
  }

  func save(_ id: Int64, fence: Int64, checkpoint: [UInt8]) throws -> Bool {
    try run { state, now in
      guard state.isHeld(id, fence) else { return false }
      return state.change(id, now: now) { job in
        job.checkpoint = checkpoint
        return true
      }
    }
  }

  func releaseUnknown(worker: String, but held: [Int64], _ queue: MemoryState.Queue) throws {
    try run { state, now in
      for job in state.all(of: queue)
      where job.rules.state == .running && job.worker == worker && !held.contains(job.id) {
        _ = state.change(job.id, now: now) { $0.rules.release(fence: $0.rules.fence) }
      }
    }
  }

  // MARK: Ends

  func end(_ ends: [JobEnd], _ session: some PostgresSession) throws -> [Int64: String] {
    guard let t = (session as? PostgresTransaction)?.own else {
      return try run { state, now in
        var states: [Int64: String] = [:]
        for end in ends { if let next = state.end(end, now: now) { states[end.id] = next.rawValue } }
        return states
      }
    }
    // What the commit will do: it fails if that is something else by then.
    let states = try run { state, now in
      var next = state
      return ends.map { next.end($0, now: now) }
    }
    t.change { [memory] state in
      let now = memory.time
      return ends.map { state.end($0, now: now) } == states
    }
    return Dictionary(
      zip(ends, states).compactMap { end, state in state.map { (end.id, $0.rawValue) } }
    ) { first, _ in first }
  }

  func lock(_ id: Int64, fence: Int64, _ t: PostgresTransaction) throws -> Bool {
    try run { state, _ in
      guard state.isHeld(id, fence) else { return false }
      t.own?.share(.job(id), &state)
      return true
    }
  }

  func complete(_ id: Int64, fence: Int64, isDeleted: Bool, _ t: PostgresTransaction) throws -> Bool {
    try end([JobEnd(id: id, fence: fence, kind: isDeleted ? .delete : .complete)], t)[id] != nil
  }

  func outcome(_ id: Int64, fence: Int64) throws -> JobTable.Outcome {
    try run { state, _ in
      guard let rules = state.jobs[id]?.rules else { return .gone }
      guard rules.fence == fence else { return .lost }
      return rules.state == .completed ? .committed : rules.state == .running ? .notCommitted : .lost
    }
  }
}

// MARK: - Adding jobs

extension MemoryLink {
  /// Adds jobs, and says of each whether it is new.
  func add(_ drafts: [WorkDraft], _ session: some PostgresSession) throws -> [(id: Int64, isNew: Bool)] {
    try within(session) { t in
      // In their order, so that two that add jobs of the same keys do not wait in a circle.
      let keys = drafts.filter { $0.core.options.keyLimit == nil }
        .compactMap { draft in draft.key.map { MemoryState.Key(queue: draft.core.table.memoryKey, name: $0) } }
      for key in Set(keys).sorted(by: { ($0.queue.name, $0.name) < ($1.queue.name, $1.name) }) { try t.lock(.key(key)) }
      return try drafts.map { draft in
        let queue = draft.core.table.memoryKey
        if let name = draft.unique {
          let key = MemoryState.Key(queue: queue, name: name)
          try t.lock(.unique(key))
          let own = t.added.first { $0.queue == queue && $0.unique == name }?.id
          if let there = try own ?? run({ state, _ in state.unfinished(key) }) { return (there, false) }
        }
        // As the server, whose dates these are; later ones could not be computed with.
        if let seconds = draft.seconds, !(-210_866_803_200..<9_200_000_000_000).contains(seconds) {
          throw PostgresError(.server, "timestamp out of range", sqlState: SQLState(rawValue: "22008"))
        }
        let isLimited = draft.core.options.keyLimit != nil
        let job = try run { state, now in
          MemoryState.Job(
            id: state.nextID(),
            queue: queue,
            rules: JobRules(
              attempts: draft.core.options.usedAttempts,
              at: draft.seconds.map { Int($0 * 1_000) * 1_000 } ?? now,
              now: now
            ),
            priority: draft.priority,
            payload: draft.payload,
            enqueuedAt: now,
            unique: draft.unique,
            orderKey: isLimited ? nil : draft.key,
            limitKey: isLimited ? draft.key : nil
          )
        }
        t.add(job)
        return (job.id, true)
      }
    }
  }
}

// MARK: - Inspection and repair

extension MemoryLink {
  func counts(_ queue: MemoryState.Queue) throws -> [WorkState: Int] {
    try run { state, _ in
      var counts = Dictionary(uniqueKeysWithValues: WorkState.allCases.map { ($0, 0) })
      for job in state.all(of: queue) { counts[job.rules.state, default: 0] += 1 }
      return counts
    }
  }

  func retry(_ id: Int64, _ queue: MemoryState.Queue) throws {
    try run { state, now in
      guard let job = state.jobs[id], job.queue == queue, job.rules.state.isFinal else { throw WorkError.noSuchJob(id) }
      if let name = job.unique, state.unfinished(.init(queue: queue, name: name)) != nil {
        throw PostgresError(.server, "an unfinished job has this unique key", sqlState: .uniqueViolation)
      }
      _ = state.change(id, now: now) { $0.rules.retry(now: now) }
    }
  }

  func cancel(_ id: Int64, _ queue: MemoryState.Queue) throws {
    try run { state, now in
      guard state.jobs[id]?.queue == queue, state.change(id, now: now, { $0.rules.cancel() }) else {
        throw WorkError.noSuchJob(id)
      }
    }
  }

  func setPaused(_ isPaused: Bool, _ queue: MemoryState.Queue) throws {
    try run { state, _ in
      if isPaused { state.paused.insert(queue) } else { state.paused.remove(queue) }
    }
  }

  func health(_ queue: MemoryState.Queue) throws -> WorkHealth {
    try run { state, now in
      let all = state.all(of: queue)
      let next = all.filter { $0.rules.state == .available }.min { $0.order < $1.order }
      return WorkHealth(
        oldestAvailable: .microseconds(max(0, next.map { now - $0.rules.at } ?? 0)),
        expiredLeases: all.count { ($0.rules.leaseEnds ?? .max) < now },
        deadRows: 0,
        oldestTransaction: .zero
      )
    }
  }

  func records<Payload>(
    _ queue: MemoryState.Queue,
    where isWanted: (MemoryState.Job) -> Bool
  ) throws -> [WorkRecord<Payload>] {
    try run { state, _ in
      state.all(of: queue).filter(isWanted).map { job in
        WorkRecord(
          id: job.id,
          state: job.rules.state,
          payload: decoded(job.payload, of: job.id),
          attempt: job.rules.attempt,
          attempts: job.rules.attempts,
          at: Date(microseconds: job.rules.at),
          enqueuedAt: Date(microseconds: job.enqueuedAt),
          leaseEnds: job.rules.leaseEnds.map { Date(microseconds: $0) },
          endedAt: job.endedAt.map { Date(microseconds: $0) },
          worker: job.worker,
          errors: job.errors
        )
      }
    }
  }
}

// MARK: - Upkeep

extension MemoryLink {
  func look(_ queues: Set<String>, schema: String, most: Int) throws -> [String: Upkeep.Found] {
    try run { state, now in
      var found: [String: Upkeep.Found] = [:]
      for name in queues.sorted() {
        found[name] = state.look(.init(schema: schema, name: name), most: most, now: now)
      }
      return found
    }
  }

  func prune(_ queues: [(name: String, completed: Duration, discarded: Duration)], schema: String, most: Int) throws
    -> Int
  {
    try run { state, now in
      queues.map { queue in
        state.prune(
          .init(schema: schema, name: queue.name),
          completed: queue.completed,
          discarded: queue.discarded,
          most: most,
          now: now
        )
      }.max() ?? 0
    }
  }
}

// MARK: - Schedules and leases

extension MemoryLink {
  /// Locks a schedule's row, which is made if it is not there; returns it with the time.
  func schedule(_ key: MemoryState.Key, rule: String, _ t: PostgresTransaction) throws -> (String, Double, Double)? {
    try t.own?.lock(.schedule(key))
    return try run { state, now in
      let seconds = Double(now) / 1_000_000
      let row = state.schedules[key] ?? (rule, seconds)
      state.schedules[key] = row
      return (row.rule, row.last, seconds)
    }
  }

  func setSchedule(_ key: MemoryState.Key, rule: String, last: Double, _ t: PostgresTransaction) {
    t.own?.change { state in
      state.schedules[key] = (rule, last)
      return true
    }
  }

  /// Takes a lease; returns its fence, or how long somebody else has it.
  func takeLease(_ name: String, holder: String, ttl: Duration) throws -> (fence: Int64?, left: Duration) {
    try run { state, now in
      var row = state.leases[name] ?? .init()
      guard row.ends <= now, !state.isShared(.lease(name)) else { return (nil, .microseconds(max(0, row.ends - now))) }
      row = .init(fence: state.nextFence(), holder: holder, ends: now + ttl.milliseconds * 1_000)
      state.leases[name] = row
      return (row.fence, .zero)
    }
  }

  /// Extends a lease, or with no time ends it; false if it is another's.
  func extendLease(_ name: String, fence: Int64, ttl: Duration) throws -> Bool {
    try run { state, now in
      guard var row = state.leases[name], row.fence == fence, ttl <= .zero || row.ends > now else { return false }
      row.ends = now + ttl.milliseconds * 1_000
      state.leases[name] = row
      return true
    }
  }

  /// Keeps a lease from others to the end of the transaction; false if it is another's.
  func shareLease(_ name: String, fence: Int64, _ t: PostgresTransaction) throws -> Bool {
    try run { state, now in
      guard let row = state.leases[name], row.fence == fence, row.ends > now else { return false }
      t.own?.share(.lease(name), &state)
      return true
    }
  }
}
#endif
