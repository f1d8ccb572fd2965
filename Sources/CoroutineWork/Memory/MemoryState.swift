#if Postgres
import Coroutine
import CoroutinePostgres
import FoundationEssentials

/// The rows of a database in memory; times are microseconds since 1970.
struct MemoryState: Sendable {
  struct Job: Sendable {
    let id: Int64
    let queue: Queue
    var rules: JobRules
    let priority: Int
    let payload: String
    let enqueuedAt: Int
    let unique: String?
    let orderKey: String?
    let limitKey: String?
    var worker: String?
    var checkpoint: [UInt8]?
    var errors: [String] = []
    var endedAt: Int?

    /// What a claim takes first.
    var order: (Int, Int, Int64) { (priority, rules.at, id) }

    mutating func append(_ error: String) { errors = (errors + [error]).suffix(10) }

    /// Notes the end, after a change of the state.
    mutating func changed(now: Int) { endedAt = rules.state.isFinal ? now : nil }
  }
  struct Queue: Hashable, Sendable {
    var schema: String
    var name: String
  }
  struct Key: Hashable, Sendable {
    var queue: Queue
    var name: String
  }
  enum Lock: Hashable, Sendable {
    case unique(Key)
    case key(Key)
    case schedule(Key)
  }
  enum Shared: Hashable, Sendable {
    case job(Int64)
    case lease(String)
  }
  struct Bucket: Sendable {
    var tokens: Double
    var at: Int
  }
  struct LeaseRow: Sendable {
    var fence: Int64 = 0
    var holder: String?
    var ends = Int.min
  }

  var jobs: [Int64: Job] = [:]
  private(set) var lastID: Int64 = 0
  private(set) var lastFence: Int64 = 0
  private var lastTransaction = 0
  var paused: Set<Queue> = []
  var buckets: [Key: Bucket] = [:]
  var schedules: [Key: (rule: String, last: Double)] = [:]
  var leases: [String: LeaseRow] = [:]
  var committed: [SQL] = []
  var locks: [Lock: (owner: Int, waiting: [Resumer<Void>])] = [:]
  /// What each transaction waits for.
  var waits: [Int: Lock] = [:]
  /// How many transactions keep others from this.
  var shared: [Shared: Int] = [:]

  mutating func nextID() -> Int64 {
    lastID += 1
    return lastID
  }
  mutating func nextFence() -> Int64 {
    lastFence += 1
    return lastFence
  }
  mutating func nextTransaction() -> Int {
    lastTransaction += 1
    return lastTransaction
  }

  func isShared(_ one: Shared) -> Bool { shared[one, default: 0] > 0 }

  func wouldWaitInCircle(_ number: Int, for lock: Lock) -> Bool {
    var next: Lock? = lock
    while let lock = next {
      guard let owner = locks[lock]?.owner else { return false }
      if owner == number { return true }
      next = waits[owner]
    }
    return false
  }

  /// The jobs of a queue in the order of their ids.
  func all(of queue: Queue) -> [Job] { jobs.values.filter { $0.queue == queue }.sorted { $0.id < $1.id } }

  // MARK: Claims

  /// What may run now of the jobs without a limit, in the order of claims.
  func ready(_ queue: Queue) -> [Job] {
    if paused.contains(queue) { return [] }
    let all = all(of: queue)
    // Of a key, only the earliest unfinished one, and none beside one that runs.
    var first: [String: Int64] = [:]
    var running: Set<String> = []
    for job in all where !job.rules.state.isFinal {
      guard let key = job.orderKey else { continue }
      first[key] = first[key] ?? job.id
      if job.rules.state == .running { running.insert(key) }
    }
    return all.filter { job in
      guard job.rules.state == .available, job.limitKey == nil else { return false }
      return job.orderKey.map { first[$0] == job.id && !running.contains($0) } ?? true
    }.sorted { $0.order < $1.order }
  }

  mutating func claim(_ ids: [Int64], lease: Duration, worker: String, now: Int) -> [JobTable.Claimed] {
    ids.compactMap { id in
      let fence = nextFence()
      guard var job = jobs[id], job.rules.claim(fence: fence, now: now, lease: lease.milliseconds * 1_000) else {
        return nil
      }
      job.worker = worker
      job.changed(now: now)
      jobs[id] = job
      return JobTable.Claimed(
        id: id,
        attempt: job.rules.attempt,
        attempts: job.rules.attempts,
        fence: fence,
        payload: job.payload,
        enqueuedAt: Date(microseconds: job.enqueuedAt),
        checkpoint: job.checkpoint,
        key: job.orderKey ?? job.limitKey
      )
    }
  }

  /// Claims jobs of keys with a limit, of keys after `last` first; returns them, and the last key of them.
  mutating func claim(
    _ most: Int,
    _ queue: Queue,
    limit: WorkKeyLimit,
    after last: String?,
    lease: Duration,
    worker: String,
    now: Int
  ) -> (jobs: [JobTable.Claimed], last: String?) {
    if paused.contains(queue) { return ([], nil) }
    let most = min(most, 200)
    var available: [String: [Job]] = [:]
    var running: [String: Int] = [:]
    for job in all(of: queue) {
      guard let key = job.limitKey else { continue }
      if job.rules.state == .available { available[key, default: []].append(job) }
      if job.rules.state == .running { running[key, default: 0] += 1 }
    }
    let count = Double(max(limit.count ?? 1, 1))
    let period = Double(max(limit.period, .milliseconds(1)).milliseconds * 1_000)
    func tokens(_ key: String) -> Double {
      guard let bucket = buckets[Key(queue: queue, name: key)] else { return count }
      return min(count, bucket.tokens + Double(now - bucket.at) * count / period)
    }
    // In the order of the server, which compares bytes.
    let wanted = available.keys.sorted { Array($0.utf8).lexicographicallyPrecedes(Array($1.utf8)) }
      .filter { key in last.map { Array($0.utf8).lexicographicallyPrecedes(Array(key.utf8)) } ?? true }
      .filter { running[$0, default: 0] < max(limit.concurrency, 1) && (limit.count == nil || tokens($0) >= 1) }
      .prefix(most)
    var claimed: [Job] = []
    for key in wanted {
      let left = tokens(key)
      let rate = limit.count == nil ? most : Int(min(left, Double(most)))
      let room = min(max(limit.concurrency, 1) - running[key, default: 0], rate, most - claimed.count)
      let jobs = (available[key] ?? []).sorted { $0.order < $1.order }.prefix(max(room, 0))
      if jobs.isEmpty { continue }
      buckets[Key(queue: queue, name: key)] = Bucket(tokens: left - Double(jobs.count), at: now)
      claimed += jobs
    }
    let ids = claimed.sorted { $0.order < $1.order }.map(\.id)
    return (claim(ids, lease: lease, worker: worker, now: now), claimed.last?.limitKey)
  }

  // MARK: Ends

  /// Ends an attempt; returns the state that follows, or nil if the job is not held any more.
  mutating func end(_ end: JobEnd, now: Int) -> WorkState? {
    guard var job = jobs[end.id] else { return nil }
    let delay = end.wait.milliseconds * 1_000
    let isHeld =
      switch end.kind {
      case .complete, .delete: job.rules.finish(fence: end.fence)
      case .fail: job.rules.fail(fence: end.fence, now: now, delay: delay)
      case .discard: job.rules.discard(fence: end.fence)
      case .snooze: job.rules.snooze(fence: end.fence, now: now, delay: delay)
      case .release: job.rules.release(fence: end.fence)
      }
    guard isHeld else { return nil }
    if end.kind == .fail || end.kind == .discard || !end.error.isEmpty { job.append(end.error) }
    job.changed(now: now)
    jobs[end.id] = end.kind == .delete ? nil : job
    return job.rules.state
  }

  func isHeld(_ id: Int64, _ fence: Int64) -> Bool {
    jobs[id].map { $0.rules.state == .running && $0.rules.fence == fence } ?? false
  }

  /// Changes a job by its rules; false if they do not allow it.
  mutating func change(_ id: Int64, now: Int, _ body: (inout Job) -> Bool) -> Bool {
    guard var job = jobs[id], body(&job) else { return false }
    job.changed(now: now)
    jobs[id] = job
    return true
  }

  // MARK: Upkeep

  /// Makes jobs available whose time has come, or whose worker's lease has ended, and says what there is to do.
  mutating func look(_ queue: Queue, most: Int, now: Int) -> Upkeep.Found {
    let all = all(of: queue)
    let due = all.filter { [.scheduled, .retryable].contains($0.rules.state) && $0.rules.at <= now }
      .sorted { ($0.rules.at, $0.id) < ($1.rules.at, $1.id) }.prefix(most)
    for job in due { _ = change(job.id, now: now) { $0.rules.becomeDue(now: now) } }
    let ended = all.filter { ($0.rules.leaseEnds ?? .max) < now && !isShared(.job($0.id)) }
      .sorted { ($0.rules.leaseEnds ?? 0, $0.id) < ($1.rules.leaseEnds ?? 0, $1.id) }.prefix(most)
    for job in ended {
      _ = change(job.id, now: now) { job in
        guard job.rules.rescue(now: now) else { return false }
        job.append("the lease of the worker has ended")
        return true
      }
    }
    let count = max(due.count, ended.count)
    let isReady =
      !paused.contains(queue) && jobs.values.contains { $0.queue == queue && $0.rules.state == .available }
    // In any order: the least of them counts.
    let next = jobs.values.lazy.filter { $0.queue == queue }.compactMap { job -> Int? in
      if let ends = job.rules.leaseEnds { return ends >= now ? ends : nil }
      return [.scheduled, .retryable].contains(job.rules.state) && job.rules.at > now ? job.rules.at : nil
    }.min()
    return Upkeep.Found(
      isReady: isReady || count > 0,
      hasMarks: false,
      next: count >= most ? .zero : next.map { .microseconds(min($0 - now, 1_000_000_000_000_000)) }
    )
  }

  /// Deletes what has ended for long enough; returns the largest number of a queue and state.
  mutating func prune(_ queue: Queue, completed: Duration, discarded: Duration, most: Int, now: Int) -> Int {
    var largest = 0
    for state in [WorkState.completed, .discarded, .cancelled] {
      let kept = (state == .completed ? completed : discarded).milliseconds * 1_000
      let old = all(of: queue).filter { $0.rules.state == state && ($0.endedAt ?? .max) < now - kept }
        .sorted { ($0.endedAt ?? 0, $0.id) < ($1.endedAt ?? 0, $1.id) }.prefix(most)
      for job in old { jobs[job.id] = nil }
      largest = max(largest, old.count)
    }
    return largest
  }

  // MARK: Adding jobs

  /// The unfinished job of a unique key.
  func unfinished(_ key: Key) -> Int64? {
    // In any order: there is one at most.
    jobs.values.first { $0.queue == key.queue && $0.unique == key.name && !$0.rules.state.isFinal }?.id
  }
}
#endif
