#if Postgres
import Coroutine
public import CoroutinePostgres
public import FoundationEssentials

// A database in memory: the rows of all queues, and transactions over them.
//
// The operations of `JobTable`, `Upkeep`, the schedules and the leases come here where their pool has no server. What a
// row may become is `JobRules`, as in the model; which rows a claim takes, in which order, is said here once more, and
// a test compares it with the statements.
//
// Invariants
//  1. An operation is one section of the lock, so it is atomic, as one statement is.
//  2. A transaction changes no job before its commit, which is one section: it checks what its operations have
//     promised, and throws a serialization failure, having changed nothing, if that does not hold any more. So effects
//     are there once: the commit of a finish checks the fence, and completes.
//  3. `locks` has what a transaction holds to its end: unique keys, keys and schedules, for which others wait. Who
//     would wait in a circle gets 40P01 instead, as from the server. Jobs and leases in `shared` are passed over by
//     those who look for them, and nothing waits for them.
//  4. What goes over a list is sorted, so that two runs of a world are the same.

/// A database in memory, for tests of handlers without a server: in worlds of CoroutineTesting, under their time.
///
/// Queues on its pools keep the rules of queues on PostgreSQL: states, attempts, leases, keys and their limits, unique
/// jobs, schedules, `finish` with its effects. A handler under test does not change. Each program gets a pool of its
/// own, as each host of a world's network:
///
/// ```swift
/// let memory = WorkMemory()
/// world.network.host("worker") {
///   try WorkQueue<Welcome>("mails", on: memory.pool()).work { job in try welcome(job) }
/// }
/// ```
///
/// A host that crashes holds its jobs until their leases end. Statements of the program's own are no SQL here: `answer`
/// answers them, at once, and those of a transaction are in ``committed`` if and when it commits. A transaction reads
/// what was committed; it holds unique keys and keys of jobs that it adds until its end. There are no notifications, so
/// other programs find a job when they next poll. COPY, `withConnection` and `listen` throw `.ended`.
public final class WorkMemory: Sendable {
  let state: ThreadMutex<MemoryState>
  let answer: @Sendable (SQL) throws -> PostgresRows
  private let start: Int
  private let steady = ContinuousClock.now
  /// The time of the world in which it was made.
  private let elapsed: UInt64

  /// Creates an empty database; it has the tables.
  ///
  /// Never suspends; any thread.
  /// - Parameters:
  ///   - start: What its clock shows now. It is the server's clock: that of the world, not of a host.
  ///   - answer: Answers a statement of the program's, on its coroutine; it may suspend, and may throw what the server
  ///     would. By default there are no rows.
  public init(
    startingAt start: Date = Date(),
    answer: @escaping @Sendable (SQL) throws -> PostgresRows = { _ in PostgresRows() }
  ) {
    self.start = Int(start.timeIntervalSince1970 * 1_000_000)
    self.answer = answer
    elapsed = SimulatedWorld.current?.elapsed ?? 0
    state = ThreadMutex(MemoryState())
  }

  /// Makes a pool on this database: one for each program.
  ///
  /// Never suspends; any thread.
  public func pool() -> PostgresPool { PostgresPool(on: MemoryLink(self)) }

  /// What its clock shows.
  ///
  /// Never suspends; any thread.
  public var now: Date { Date(microseconds: time) }

  /// Microseconds since 1970.
  var time: Int {
    if let world = SimulatedWorld.current { return start + Int((world.elapsed &- elapsed) / 1_000) }
    return start + (ContinuousClock.now - steady).microseconds
  }

  /// The programs' own statements that have taken effect, in the order of their commits.
  ///
  /// Never suspends; any thread.
  public var committed: [SQL] { state.withLock { $0.committed } }

  /// Cuts a pool's program off, or joins it again: meanwhile each statement throws `.lost`, and leases end.
  ///
  /// Never suspends; any thread.
  ///
  /// Traps if the pool is another database's.
  public func setReachable(_ isReachable: Bool, from pool: PostgresPool) {
    guard let link = pool.memory as? MemoryLink, link.memory === self else {
      misuse("the pool is not on this database; use one that its pool() has made")
    }
    link.isCut.withLock { $0 = !isReachable }
  }
}

/// The way of one program to a database in memory.
final class MemoryLink: MemoryDatabase {
  let memory: WorkMemory
  let isCut = ThreadMutex(false)

  init(_ memory: WorkMemory) { self.memory = memory }

  /// Throws as a statement does that does not reach the server.
  func check() throws {
    // What ran on a host that has crashed tells nobody anything while it unwinds.
    if isCut.withLock({ $0 }) || SimulatedWorld.callerHasCrashed {
      throw PostgresError(.lost, "the database in memory cannot be reached from here")
    }
  }

  /// One operation, at a time; others may run before it.
  func run<R: Sendable>(_ body: (inout MemoryState, _ now: Int) throws -> R) throws -> R {
    try co_checkCancelled()
    co_point()
    try check()
    let now = memory.time
    return try memory.state.withLock { state in try body(&state, now) }
  }

  func run(_ statement: SQL) throws -> PostgresRows {
    try co_checkCancelled()
    co_point()
    try check()
    let rows = try memory.answer(statement)
    try check()
    memory.state.withLock { $0.committed.append(statement) }
    return rows
  }

  func begin() throws -> any MemoryTransaction {
    try co_checkCancelled()
    try check()
    return JobTransaction(self, number: memory.state.withLock { $0.nextTransaction() })
  }

  /// The transaction of a session on this database, or one of its own for `body`.
  func within<R>(_ session: some PostgresSession, _ body: (JobTransaction) throws -> R) throws -> R {
    if let t = session as? PostgresTransaction {
      guard let own = t.memory as? JobTransaction, own.link.memory === memory else {
        throw PostgresError(.ended, "the transaction is not one of the queue's database")
      }
      return try body(own)
    }
    let own = JobTransaction(self, number: memory.state.withLock { $0.nextTransaction() })
    defer { own.end() }
    let value = try body(own)
    try own.commit()
    return value
  }
}

extension PostgresPool {
  /// The database in memory that the pool is on, if any.
  var link: MemoryLink? { memory as? MemoryLink }
}

extension PostgresTransaction {
  /// The transaction of a database in memory, if it is one.
  var own: JobTransaction? { memory as? JobTransaction }
}

// MARK: - Transactions

/// A transaction of a database in memory.
///
/// Used by one coroutine at a time, as its `PostgresTransaction` sees to.
final class JobTransaction: MemoryTransaction {
  /// What the commit does to the rows; false if that is not possible any more.
  typealias Change = @Sendable (inout MemoryState) -> Bool
  private struct Done {
    var changes: [Change] = []
    /// Jobs that the commit adds; unique keys are looked for here too.
    var added: [MemoryState.Job] = []
  }
  let link: MemoryLink
  let number: Int
  private let done = ThreadMutex<(all: [Done], locks: Set<MemoryState.Lock>, shared: [MemoryState.Shared])>(
    ([], [], [])
  )

  init(_ link: MemoryLink, number: Int) { (self.link, self.number) = (link, number) }

  var added: [MemoryState.Job] { done.withLock { $0.all.flatMap(\.added) } }

  func add(_ job: MemoryState.Job) { done.withLock { $0.all.append(Done(added: [job])) } }
  func change(_ change: @escaping Change) { done.withLock { $0.all.append(Done(changes: [change])) } }

  func run(_ statement: SQL) throws -> PostgresRows {
    try co_checkCancelled()
    co_point()
    try link.check()
    let rows = try link.memory.answer(statement)
    change { state in
      state.committed.append(statement)
      return true
    }
    return rows
  }

  func mark() throws -> Int {
    try link.check()
    return done.withLock { $0.all.count }
  }
  func undo(to mark: Int) { done.withLock { $0.all.removeLast($0.all.count - mark) } }

  func commit() throws {
    let all = done.withLock { $0.all }
    try link.check()
    let isDone = link.memory.state.withLock { state in
      var next = state
      for part in all {
        for change in part.changes where !change(&next) { return false }
        for job in part.added {
          // One that was ended may have been made available again.
          if let name = job.unique, next.unfinished(.init(queue: job.queue, name: name)) != nil { return false }
          next.jobs[job.id] = job
        }
      }
      state = next
      return true
    }
    if !isDone {
      throw PostgresError(.server, "a job was changed by another transaction", sqlState: .serializationFailure)
    }
  }

  func end() {
    let (locks, shared) = done.withLock { done in
      defer { (done.locks, done.shared) = ([], []) }
      return (done.locks, done.shared)
    }
    let waiting = link.memory.state.withLock { state -> [Resumer<Void>] in
      for one in shared { state.shared[one, default: 1] -= 1 }
      state.waits[number] = nil
      // They wait for nothing now, also before they run: a transaction that takes the lock meanwhile is in no circle.
      state.waits = state.waits.filter { !locks.contains($0.value) }
      return locks.flatMap { state.locks.removeValue(forKey: $0)?.waiting ?? [] }
    }
    for next in waiting { next.resume(()) }
  }

  /// Keeps others from a job or a lease to the end of this transaction.
  func share(_ shared: MemoryState.Shared, _ state: inout MemoryState) {
    state.shared[shared, default: 0] += 1
    done.withLock { $0.shared.append(shared) }
  }

  /// Takes a lock; suspends until it is free.
  func lock(_ lock: MemoryState.Lock) throws {
    while true {
      let isMine = try link.run { state, _ in
        if let held = state.locks[lock], held.owner != number {
          if state.wouldWaitInCircle(number, for: lock) { throw Self.circle }
          return false
        }
        if state.locks[lock] == nil { state.locks[lock] = (number, []) }
        return true
      }
      if isMine {
        done.withLock { _ = $0.locks.insert(lock) }
        return
      }
      defer { link.memory.state.withLock { $0.waits[number] = nil } }
      try co_suspend { (resumer: Resumer<Void>) in
        let known = link.memory.state.withLock { state -> Result<Void, any Error>? in
          guard state.locks[lock] != nil else { return .success(()) }
          // Again, in the section that begins the wait: since the look above, another one may have begun its own.
          if state.wouldWaitInCircle(number, for: lock) { return .failure(Self.circle) }
          state.locks[lock]?.waiting.append(resumer)
          state.waits[number] = lock
          return nil
        }
        if let known { resumer.resume(with: known) }
      }
    }
  }

  private static var circle: PostgresError {
    PostgresError(.server, "transactions wait for each other in a circle", sqlState: .deadlock)
  }
}

// MARK: - Time

extension Date {
  init(microseconds: Int) { self.init(timeIntervalSince1970: Double(microseconds) / 1_000_000) }
}

extension Duration {
  /// Whole microseconds, of durations below 1,000 years.
  var microseconds: Int { milliseconds * 1_000 + Int(components.attoseconds / 1_000_000_000_000 % 1_000) }
}

extension ContinuousClock.Instant {
  /// The program's steady clock: in a world that of the calling host.
  ///
  /// Elsewhere the one that goes on while the machine sleeps, because leases do.
  static var steady: ContinuousClock.Instant {
    SimulatedWorld.current == nil ? .now : anchor.steady + (co_now - anchor.world)
  }
  private static let anchor = (steady: ContinuousClock.now, world: co_now)
}

/// A number by chance; in a world the middle, because each difference of two runs is a choice of the world.
func chance(_ range: ClosedRange<Double>) -> Double {
  SimulatedWorld.current == nil ? .random(in: range) : (range.lowerBound + range.upperBound) / 2
}
#endif
