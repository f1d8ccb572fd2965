import Coroutine
import Dispatch
import Testing

/// What a generator's body locks belongs to the coroutine that makes the step, and does not outlast the step.
@Suite("Generators and locks", .timeLimit(.minutes(10)))
struct GeneratorLockTests {
  typealias Numbers = Generator<Int, Never, Void>

  /// A way to hold something.
  enum Kind: String, CaseIterable, Sendable {
    case mutex, tried, selected, written, triedWritten, selectedWritten, once, read, permit
    /// Those that only their owner gives back.
    static let owned = Array(allCases.dropLast(2))
    /// Those without an owner: any coroutine or thread may give them back.
    static let free = Array(allCases.suffix(2))
  }

  struct Locks: Sendable {
    let mutex = FairMutex()
    let lock = FairReadWriteLock()
    let permit = FairSemaphore(1)
    let once = Once<Int>()

    func hold(_ kind: Kind, _ body: () throws -> Void) throws {
      switch kind {
      case .mutex: try mutex.withLock(body)
      case .tried:
        #expect(mutex.tryLock())
        defer { mutex.unlock() }
        try body()
      case .selected:
        try co_select { mutex.onLock {} }
        defer { mutex.unlock() }
        try body()
      case .written: try lock.withWriteLock(body)
      case .triedWritten:
        #expect(lock.tryLockWrite())
        defer { lock.unlockWrite() }
        try body()
      case .selectedWritten:
        try co_select { lock.onWriteLock {} }
        defer { lock.unlockWrite() }
        try body()
      case .read: try lock.withReadLock(body)
      case .permit:
        try permit.acquire()
        defer { permit.release() }
        try body()
      case .once:
        _ = try once.run {
          try body()
          return 1
        }
      }
    }

    /// Whether nothing is held.
    var areFree: Bool {
      guard mutex.tryLock() else { return false }
      mutex.unlock()
      guard lock.tryLockWrite() else { return false }
      lock.unlockWrite()
      return permit.available == 1
    }

    /// Yields 1 without the lock, 2 and 3 with it, and 4 without.
    func body(_ kind: Kind) -> Numbers {
      co_sequence { yield in
        try yield(1)
        try hold(kind) {
          try yield(2)
          try yield(3)
        }
        try yield(4)
      }
    }
  }

  // MARK: A yield with a lock

  /// Yields -1 where a yield with the lock was refused, and goes on.
  private func refused(_ locks: Locks, _ kind: Kind) -> Numbers {
    co_sequence { yield in
      try yield(1)
      do {
        try locks.hold(kind) { _ = try yield(2) }
      } catch CoroutineError.yieldInsideScope { try yield(-1) }
      try locks.hold(kind) { try co_yield() }
      try yield(3)
    }
  }

  @Test(arguments: Kind.owned) func `a yield with the lock throws, and one after the unlock does not`(_ kind: Kind)
    async throws
  {
    try await onSerialQueue {
      let locks = Locks()
      #expect(Array(refused(locks, kind)) == [1, -1, 3])
      #expect(locks.areFree)
      // Others: a Once has run.
      let others = Locks()
      let inner = refused(others, kind)
      #expect(Array(co_sequence { yield in try yield.all(of: inner) }) == [1, -1, 3])
      #expect(others.areFree)
    }
  }

  @Test(arguments: Kind.owned) func `every step may be another coroutine's, which has the lock meanwhile`(_ kind: Kind)
    async throws
  {
    let locks = Locks()
    let handed = Handed(refused(locks, kind))
    for expected in [1, -1, 3, nil] {
      #expect(try await onCoroutine { handed.value.next() } == expected)
      #expect(locks.areFree)
    }
  }

  @Test(arguments: Kind.free) func `a read and a permit may be held from step to step, whoever makes them`(_ kind: Kind)
    async throws
  {
    let locks = Locks()
    let handed = Handed(locks.body(kind))
    for expected in 1...4 {
      #expect(try await onCoroutine { handed.value.next() } == expected)
      #expect(locks.areFree == !(2...3).contains(expected))
    }
    #expect(try await onCoroutine { handed.value.next() } == nil)
    #expect(locks.areFree)
  }

  @Test func `a thread owns what a body locks that it steps, also over a yield`() throws {
    let locks = Locks()
    let body = locks.body(.tried)
    for expected in 1...4 {
      #expect(body.next() == expected)
      #expect(locks.areFree == !(2...3).contains(expected))
    }
  }

  /// Sanitizers keep the frames of deadlines elsewhere.
  @Test(.enabled(if: !isSanitized)) func `a lock that was locked inside a deadline counts after the deadline`()
    async throws
  {
    try await onSerialQueue {
      let (first, second) = (FairMutex(), FairMutex())
      let body = co_sequence(of: Int.self) { yield in
        try co_timeout(.seconds(60)) {
          try first.lock()
          try co_timeout(.seconds(60)) { try second.lock() }
          first.unlock()
        }
        do { try yield(1) } catch CoroutineError.yieldInsideScope { second.unlock() }
        try yield(2)
        try co_timeout(.seconds(60)) {
          try first.lock()
          co_shield { first.unlock() }
        }
        try yield(3)
      }
      // The deadline of the consumer is outside of all.
      let seen = try co_timeout(.seconds(60)) { Array(body) }
      #expect(seen == [2, 3])
      #expect(co_timeLeft == nil)
    }
  }

  @Test func `a body that ends with a lock leaves it to its coroutine`() async throws {
    try await onSerialQueue {
      for how in ["return", "throw", "delegate"] {
        let mutex = FairMutex()
        let ends = co_sequence(of: Int.self) { _ in
          try mutex.lock()
          if how == "throw" { throw Oops("end") }
        }
        let body = how == "delegate" ? co_sequence(of: Int.self) { yield in try yield.all(of: ends) } : ends
        #expect(body.next() == nil)
        _ = body.failure
        #expect(outcome { try mutex.lock() } == "wouldDeadlock")
        // The frame of the lock is gone: other bodies yield.
        #expect(Array(co_sequence { yield in try yield(1) }) == [1])
        mutex.unlock()
        #expect(mutex.tryLock())
      }
    }
  }

  @Test(arguments: Kind.free, ["the coroutine", "another", "a thread"])
  func `a read or a permit that a body has at its end is given back by whoever wants to`(_ kind: Kind, _ who: String)
    async throws
  {
    let locks = Locks()
    try await onSerialQueue {
      let body = co_sequence(of: Int.self) { _ in
        if kind == .read { try locks.lock.lockRead() } else { try locks.permit.acquire() }
      }
      #expect(body.next() == nil)
      #expect(!locks.areFree)
      let give: @Sendable () -> Void = { if kind == .read { locks.lock.unlockRead() } else { locks.permit.release() } }
      switch who {
      case "the coroutine": give()
      case "another": try co_launch { give() }.join()
      default: try co_blocking { give() }
      }
    }
    #expect(locks.areFree)
  }

  @Test func `a body unlocks what its consumer has locked`() async throws {
    try await onSerialQueue {
      let mutex = FairMutex()
      let body = Numbers { yield in
        mutex.unlock()
        try yield(1)
      }
      try mutex.lock()
      #expect(Array(body) == [1])
      #expect(mutex.tryLock())
    }
  }

  // MARK: The chain

  /// What a caller gets if each lock is held below it, or by a body that it has stepped.
  private func refusals(_ locks: Locks) -> [String] {
    [
      outcome { try locks.mutex.lock() }, outcome { try locks.mutex.withLock {} },
      outcome { try co_select { locks.mutex.onLock {} } }, outcome { try locks.lock.lockWrite() },
      outcome { try locks.lock.lockRead() }, outcome { try co_select { locks.lock.onWriteLock {} } },
      outcome { try co_select { locks.lock.onReadLock {} } }, outcome { try locks.once.run { 2 } },
      "\(locks.mutex.tryLock())", "\(locks.lock.tryLockWrite())", "\(locks.lock.tryLockRead())",
    ]
  }
  private let refused = Array(repeating: "wouldDeadlock", count: 8) + Array(repeating: "false", count: 3)

  /// Holds every lock during the body.
  private func hold(_ locks: Locks, _ body: () throws -> Void) throws {
    try locks.hold(.mutex) { try locks.hold(.written) { try locks.hold(.once, body) } }
  }

  @Test func `a body gets wouldDeadlock for what its coroutine holds, at any depth`() async throws {
    try await onSerialQueue {
      let locks = Locks()
      let inner = co_sequence(of: [String].self) { yield in try yield(refusals(locks)) }
      let middle = co_sequence(of: [String].self) { yield in
        for element in inner { try yield(element) }
        try yield(refusals(locks))
      }
      let outer = co_sequence(of: [String].self) { yield in try yield.all(of: middle) }
      try hold(locks) { for seen in outer { #expect(seen == refused) } }
      #expect(locks.areFree)
    }
  }

  /// Permits have no owner, nor have reads: the documentation of both says so.
  @Test(.inWorlds) func `a body waits for a permit or a read that its coroutine has, and is not refused`() throws {
    let locks = Locks()
    let body = co_sequence(of: String.self) { yield in
      try yield(outcome { try co_timeout(.milliseconds(1)) { try locks.permit.acquire() } })
      try yield(outcome { try co_timeout(.milliseconds(1)) { try locks.lock.lockWrite() } })
    }
    var seen: [String] = []
    try locks.hold(.permit) { try locks.hold(.read) { for outcome in body { seen.append(outcome) } } }
    #expect(seen == ["TimeoutError", "TimeoutError"])
    #expect(locks.areFree)
  }

  @Test func `a body gets wouldDeadlock for what a body below it holds`() async throws {
    try await onSerialQueue {
      let locks = Locks()
      let inner = co_sequence(of: [String].self) { yield in
        try yield(refusals(locks))
        try yield(refusals(locks))
      }
      let outer = co_sequence(of: [[String]].self) { yield in
        var seen: [[String]] = []
        try hold(locks) { for each in inner { seen.append(each) } }
        try yield(seen)
      }
      #expect(Array(outer) == [[refused, refused]])
      #expect(locks.areFree)
    }
  }

  @Test func `a condition in a body gives the mutex back to the owner that had it`() async throws {
    try await onSerialQueue {
      let (mutex, trace) = (FairMutex(), Trace())
      let (condition, isReady) = (Condition(mutex), Locked(false))
      let waits = co_sequence(of: Int.self) { yield in
        try condition.wait { isReady.current }
        trace("in the body")
        try yield(1)
      }
      let waiter = co_launch {
        try mutex.withLock {
          #expect(Array(waits) == [1])
          #expect(outcome { try mutex.lock() } == "wouldDeadlock")
        }
      }
      try co_yield()
      try mutex.withLock {
        isReady.withLock { $0 = true }
        condition.signal()
        trace("signalled")
      }
      try waiter.join()
      #expect(trace.all == ["signalled", "in the body"])
      #expect(mutex.tryLock())
    }
  }

  @Test func `a body waits on a condition with its own mutex`() async throws {
    let mutex = FairMutex()
    let (condition, count) = (Condition(mutex), Locked(0))
    let handed = Handed(
      co_sequence(of: Int.self) { yield in
        try mutex.withLock {
          do { try yield(0) } catch CoroutineError.yieldInsideScope {}
          try condition.wait { count.current > 0 }
          do { try yield(0) } catch CoroutineError.yieldInsideScope {}
        }
        try yield(count.current)
      }
    )
    let first = co_launch { handed.value.next() }
    try await onCoroutine {
      try mutex.withLock {
        count.withLock { $0 = 7 }
        condition.signal()
      }
    }
    #expect(try await first.value == 7)
    #expect(mutex.tryLock())
    #expect(try await onCoroutine { handed.value.next() } == nil)
  }

  // MARK: What belongs to the coroutine

  @Test(arguments: ["own", "main"])
  func `a yield inside co_isolated throws, and the actor is free`(_ executor: String) async throws {
    let queue = taggedQueue("actor")
    let actor = OnQueue(queue)
    let seen = try await co_launch(on: executor == "main" ? .main : nil) {
      let generator = co_sequence(of: Int.self) { yield in
        let yields = Handed { _ = try yield(1) }
        do {
          if executor == "own" {
            try co_isolated(actor) { _ in try yields.value() }
          } else {
            try co_isolated(MainActor.shared) { _ in try yields.value() }
          }
        } catch CoroutineError.yieldInsideScope { try yield(-1) }
      }
      return Array(generator)
    }
    .value
    #expect(seen == [-1])
    let isFree = try await co_launch { try co_isolated(actor) { _ in true } }.value
    #expect(isFree)
  }

  /// There the body of co_isolated is on a stack of its own.
  @Test func `a yield in the isolation of a foreign executor ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try await onCoroutine {
        let generator = co_sequence(of: Int.self) { yield in
          let yields = Handed { _ = try yield(1) }
          try co_isolated(Plain()) { _ in try yields.value() }
        }
        _ = generator.next()
      }
    }
    #expect(died?.said("a generator's yield was called outside of its body") == true)
  }

  private actor Plain {}

  private actor OnQueue {
    private let executor: CoroutineExecutor
    nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
    init(_ queue: DispatchQueue) { executor = CoroutineExecutor(queue) }
  }
}
