import Coroutine
import Dispatch
import Testing

/// Locks that a generator's body holds over its yields belong to the body, whatever makes its steps.
@Suite("Generators, locks held over yields", .timeLimit(.minutes(5)))
struct GeneratorLockTests {
  typealias Numbers = Generator<Int, Never, Void>

  /// A way to hold something that only its owner gives back.
  enum Kind: String, CaseIterable, Sendable {
    case mutex, tried, selected, written, triedWritten, selectedWritten, read, permit, once
    /// Only these can be locked on a thread, outside any coroutine.
    static let onThreads: [Kind] = [.tried, .triedWritten]
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

  /// Whether only the body could be the holder after this number.
  private func isHeld(after number: Int, _ kind: Kind) -> Bool { (2...3).contains(number) && kind != .once }

  @Test(arguments: Kind.allCases) func `in one coroutine the lock is held from step to step`(_ kind: Kind) async throws
  {
    try await onSerialQueue {
      let locks = Locks()
      for number in locks.body(kind) { #expect(locks.areFree == !isHeld(after: number, kind)) }
      #expect(locks.areFree)
    }
  }

  @Test(arguments: Kind.allCases) func `every step may be another coroutine's`(_ kind: Kind) async throws {
    let locks = Locks()
    let handed = Handed(locks.body(kind))
    for expected in 1...4 {
      let number = try await onCoroutine { handed.value.next() }
      #expect(number == expected)
      #expect(locks.areFree == !isHeld(after: expected, kind))
    }
    #expect(try await onCoroutine { handed.value.next() } == nil)
    #expect(locks.areFree)
  }

  @Test(arguments: Kind.onThreads) func `every step may be another thread's`(_ kind: Kind) async throws {
    let locks = Locks()
    let handed = Handed(locks.body(kind))
    for expected in 1...4 {
      let number = try await onOwnThread { handed.value.next() }
      #expect(number == expected)
      #expect(locks.areFree == !isHeld(after: expected, kind))
    }
  }

  @Test(arguments: Kind.allCases) func `async code may take the elements`(_ kind: Kind) async throws {
    let locks = Locks()
    var seen: [Int] = []
    for try await number in locks.body(kind).asyncElements() {
      seen.append(number)
      #expect(locks.areFree == !isHeld(after: number, kind))
    }
    #expect(seen == [1, 2, 3, 4])
    #expect(locks.areFree)
  }

  @Test(arguments: Kind.allCases) func `an inner body keeps its lock while an outer one delegates to it`(
    _ kind: Kind
  ) async throws {
    let locks = Locks()
    let inner = Handed(locks.body(kind))
    let outer = Handed(co_sequence(of: Int.self) { yield in try yield.all(of: inner.value) })
    for expected in 1...4 { #expect(try await onCoroutine { outer.value.next() } == expected) }
    #expect(locks.areFree)
  }

  /// The consumer and the body count as the same owner, also while the body ends.
  @Test(arguments: ["close", "release"])
  func `a body unlocks at its end what its consumer has locked`(_ how: String) async throws {
    let isFree = try await onCoroutine {
      let mutex = FairMutex()
      var numbers: Numbers? = Numbers { yield in
        defer { mutex.unlock() }
        try yield(1)
      }
      try mutex.lock()
      _ = numbers?.next()
      if how == "close" { numbers?.close() }
      numbers = nil
      return mutex.tryLock()
    }
    #expect(isFree)
  }

  @Test(arguments: Kind.allCases, ["close", "release"])
  func `a close or a release anywhere unlocks`(_ kind: Kind, _ how: String) async throws {
    for isOnThread in [true, false] {
      let locks = Locks()
      let box = Locked<Handed<Numbers>?>(nil)
      try await onCoroutine {
        let generator = locks.body(kind)
        #expect(generator.next() == 1 && generator.next() == 2)
        let handed = Handed(generator)
        box.withLock { $0 = handed }
      }
      #expect(locks.areFree == !isHeld(after: 2, kind))
      let end: @Sendable () -> Void = {
        if how == "close" { box.current?.value.close() }
        box.withLock { $0 = nil }
      }
      if isOnThread { try await onOwnThread(end) } else { try await onCoroutine(end) }
      #expect(locks.areFree)
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
      for delegates in [true, false] {
        let locks = Locks()
        let inner = co_sequence(of: [String].self) { yield in try yield(refusals(locks)) }
        let outer = co_sequence(of: [String].self) { yield in
          try hold(locks) {
            if delegates { try yield.all(of: inner) } else { for seen in inner { try yield(seen) } }
          }
        }
        #expect(Array(outer) == [refused])
        #expect(locks.areFree)
      }
    }
  }

  @Test func `a coroutine gets wouldDeadlock for what a body holds that it has stepped`() async throws {
    try await onSerialQueue {
      let locks = Locks()
      let holder = co_sequence(of: Int.self) { yield in
        try hold(locks) {
          try yield(1)
          try yield(2)
        }
      }
      for _ in holder { #expect(refusals(locks) == refused) }
      #expect(locks.areFree)
    }
  }

  /// Every step of the outer generator is made by another coroutine.
  @Test func `a body gets wouldDeadlock for what a body holds that it has stepped, whoever steps itself`() async throws
  {
    let locks = Locks()
    let outer = co_sequence(of: [String].self) { yield in
      let innermost = co_sequence(of: Int.self) { yield in
        try hold(locks) {
          try yield(1)
          try yield(2)
        }
      }
      let between = co_sequence(of: Int.self) { yield in for number in innermost { try yield(number) } }
      for _ in between {
        try yield([])
        try yield(refusals(locks))
      }
    }
    let seen = Locked<[[String]]>([])
    for try await element in outer.asyncElements() { seen.withLock { $0.append(element) } }
    #expect(seen.current == [[], refused, [], refused])
    #expect(locks.areFree)
  }

  @Test func `a coroutine waits for a body that another coroutine has stepped since`() async throws {
    let trace = try await onSerialQueue {
      let (mutex, trace) = (FairMutex(), Trace())
      let handed = Handed(
        co_sequence(of: Int.self) { yield in
          try mutex.withLock { for number in 1...3 { try yield(number) } }
          trace("unlocked")
        }
      )
      #expect(handed.value.next() == 1)
      #expect(outcome { try mutex.lock() } == "wouldDeadlock")
      let other = co_launch {
        #expect(handed.value.next() == 2)
        #expect(outcome { try mutex.lock() } == "wouldDeadlock")
        try co_yield()
        #expect(handed.value.next() == 3)
        try co_yield()
        #expect(handed.value.next() == nil)
      }
      try co_yield()
      try mutex.withLock { trace("locked") }
      try other.join()
      return trace.all
    }
    #expect(trace == ["unlocked", "locked"])
  }

  @Test func `a body that hands its lock out is unlocked by its consumer`() async throws {
    try await onSerialQueue {
      let mutexes = (0..<3).map { _ in FairMutex() }
      let locked = co_sequence(of: FairMutex.self) { yield in
        for mutex in mutexes {
          try mutex.lock()
          try yield(mutex)
        }
      }
      for mutex in locked {
        #expect(!mutex.tryLock())
        mutex.unlock()
        #expect(mutex.tryLock())
        mutex.unlock()
      }
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

  @Test func `a body waits on a condition with its own mutex, from coroutine to coroutine`() async throws {
    let mutex = FairMutex()
    let (condition, count) = (Condition(mutex), Locked(0))
    let handed = Handed(
      co_sequence(of: Int.self) { yield in
        try mutex.withLock {
          try yield(0)
          try condition.wait { count.current > 0 }
          try yield(count.current)
        }
      }
    )
    #expect(try await onCoroutine { handed.value.next() } == 0)
    let second = co_launch { handed.value.next() }
    try await onCoroutine {
      try mutex.withLock {
        count.withLock { $0 = 7 }
        condition.signal()
      }
    }
    #expect(try await second.value == 7)
    #expect(!mutex.tryLock())
    #expect(try await onCoroutine { handed.value.next() } == nil)
    #expect(mutex.tryLock())
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

  @Test func `unlocking what an unrelated body holds ends the process`() async {
    let died = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let mutex = FairMutex()
      let handed = Handed(co_sequence(of: Int.self) { yield in try mutex.withLock { _ = try yield(1) } })
      _ = try await onCoroutine { handed.value.next() }
      try await onCoroutine { mutex.unlock() }
    }
    #expect(died?.said("A FairMutex can be unlocked only by the coroutine") == true)
  }
}
