import Synchronization

/// The algorithm of a select, without types; the numbers in comments are the steps at the head of Select.swift.
@usableFromInline
enum SelectRun {
  @usableFromInline typealias Nodes = UnsafeMutablePointer<SelectWaiter>

  /// The largest number of cases: their numbers share a byte with the other reasons for the end of a wait.
  static let most = 240

  /// Commits one case, and returns its index.
  ///
  /// Throws if the coroutine is cancelled; then nothing is committed. In both cases every unselected case has been
  /// disposed of, and no waiter is linked any more.
  @usableFromInline
  static func run(_ waiters: Nodes, _ count: Int, _ biased: Bool, needsPreparation: Bool) throws -> Int {
    if count > most { misuse("A select takes at most \(most) cases, not \(count): let many send into one channel.") }
    guard needsPreparation else { return try commit(waiters, count, biased, mayGiveWay: true) }
    // Before the preparation, because it may let others run: what a case has found would be out of date.
    _ = try Carrier.beginWaiting()
    let decides = biased || (0..<count).contains { mayEndAtOnce(waiters + $0) }
    for index in 0..<count where waiters[index].source.pointee.needsPreparation {
      perform(decides ? .prepareToDecide : .prepare, waiters + index)
    }
    var winner = -1
    defer {
      for index in 0..<count where index != winner && waiters[index].source.pointee.needsPreparation {
        perform(.dispose, waiters + index)
      }
    }
    winner = try commit(waiters, count, biased, mayGiveWay: false)
    return winner
  }

  private static func running() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    return (carrier, job)
  }

  @inline(__always)
  private static func commit(
    _ waiters: Nodes,
    _ count: Int,
    _ biased: Bool,
    mayGiveWay: Bool
  ) throws -> Int {
    // The operands and `prepare` were foreign code: the current thread, and the cancellation, must be read here.
    let (carrier, job) = try mayGiveWay ? Carrier.beginWaiting() : running()
    let locks = orderLocks(waiters, count)
    orderAttempts(waiters, count, biased, carrier, job)
    // 2
    lock(waiters, locks)
    // 3
    var position = 0
    while position < count {
      let index = Int(waiters[position].attempted)
      let answer = attempt(waiters + index)
      position += 1
      if answer.word == 0 { continue }
      unlock(waiters, locks)
      if answer.word != SelectAnswer.needsRoom.word {
        answer.wake()
        return index
      }
      perform(.makeRoom, waiters + index)
      lock(waiters, locks)
      position = 0
    }
    var timeout: Int?
    for index in 0..<count where waiters[index].kind != .operation {
      if waiters[index].kind == .otherwise {
        unlock(waiters, locks)
        return index
      }
      if timeout.map({ waiters[index].words[0] < waiters[$0].words[0] }) ?? true { timeout = index }
    }
    // 4
    job.pointee.selectNodes.store(UInt(bitPattern: waiters), ordering: .releasing)
    job.pointee.selectCount.store(UInt8(truncatingIfNeeded: count), ordering: .relaxed)
    let source = locks > 0 ? waiters[Int(waiters[0].locked)].source.pointee.target : nil
    let address = UInt(bitPattern: source.map { Unmanaged.passUnretained($0).toOpaque() })
    func publish(_ epoch: WaitEpoch) {
      // In the order of the attempts: of two cases in one queue, either is first with equal probability, unless biased.
      for position in 0..<count {
        let index = Int(waiters[position].attempted)
        guard let queue = waiters[index].source.pointee.queue else { continue }
        waiters[index].slotted.waiter.job = job
        queue.pointee.append((waiters + index).waitNode, epoch)
      }
      // 5
      unlock(waiters, locks)
    }
    let reason: UInt8
    if let timeout {
      reason = try park(carrier, job, address, waiters[timeout].words[0], publish) {
        unlink(waiters, count, except: -1)
      }
    } else {
      reason = try WaitQueue.park(carrier, job, .select, for: address, publish: publish) {
        unlink(waiters, count, except: -1)
      }
    }
    var winner = -1
    if reason >= WakeReason.firstCase {
      winner = Int(reason - WakeReason.firstCase)
    } else if reason == WakeReason.timer, let timeout {
      winner = timeout
    }
    // 6: the thread that claimed the selected case has unlinked its waiter.
    unlink(waiters, count, except: winner)
    return winner
  }

  @inline(__always)
  private static func unlink(_ waiters: Nodes, _ count: Int, except winner: Int) {
    for index in 0..<count where index != winner {
      guard let queue = waiters[index].source.pointee.queue else { continue }
      let lock = waiters[index].lock
      lock.pointee.lock()
      queue.pointee.remove((waiters + index).waitNode)
      lock.pointee.unlock()
    }
  }

  /// Whether the select ends without a wait because of this case.
  private static func mayEndAtOnce(_ waiter: Nodes) -> Bool {
    switch waiter.pointee.kind {
    case .operation: false
    case .timeout: waiter.pointee.words[0] == 0
    case .otherwise: true
    }
  }

  @inline(__always)
  private static func attempt(_ waiter: Nodes) -> SelectAnswer {
    switch waiter.pointee.kind {
    case .operation: perform(.attempt, waiter)
    case .timeout: waiter.pointee.words[0] == 0 ? .yes : .no
    case .otherwise: .no
    }
  }

  /// Performs any step but `finish`, which alone throws, and alone uses the memory.
  @inline(__always) @discardableResult
  private static func perform(_ step: SelectStep, _ waiter: Nodes) -> SelectAnswer {
    (try? waiter.pointee.source.pointee.operate(step, waiter, waiter)).unsafelyUnwrapped
  }

  @inline(__always)
  private static func lock(_ waiters: Nodes, _ locks: Int) {
    for position in 0..<locks { waiters[Int(waiters[position].locked)].lock.pointee.lock() }
  }

  @inline(__always)
  private static func unlock(_ waiters: Nodes, _ locks: Int) {
    for position in 0..<locks { waiters[Int(waiters[position].locked)].lock.pointee.unlock() }
  }

  /// Disposes of the selected case, after its body.
  @usableFromInline
  static func dispose(_ waiter: Nodes) {
    if waiter.pointee.source.pointee.needsPreparation { perform(.dispose, waiter) }
  }

  /// Parks for at most `nanoseconds`.
  private static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    _ source: UInt,
    _ nanoseconds: UInt,
    _ publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    return try scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      var timer = TimerNode(deadline: scheduler.deadline(Int64(clamping: nanoseconds), after: now), job)
      return try withUnsafeMutablePointer(to: &timer) { timer in
        let reason = try WaitQueue.park(carrier, job, .select, for: source) { epoch in
          publish(epoch)
          // After the locks are left: starting a timer may allocate.
          scheduler.add(timer, waking: epoch, now: now)
        } withdraw: {
          scheduler.remove(timer)
          withdraw()
        }
        if reason != WakeReason.timer { scheduler.remove(timer) }
        return reason
      }
    }
  }

  /// Waits for the end of a select without cases.
  @usableFromInline
  static func waitForCancellation() throws -> Never {
    let (carrier, job) = try Carrier.beginWaiting()
    job.pointee.selectCount.store(0, ordering: .relaxed)
    try WaitQueue.park(carrier, job, .select) { _ in
    } withdraw: {
    }
    misuse("a select without cases has ended without a cancellation")
  }

  /// The length of a timeout; zero means that it is ready at once.
  @usableFromInline
  static func nanoseconds(_ duration: Duration) -> UInt {
    UInt(clamping: duration.nanoseconds)
  }

  // MARK: Orders

  /// Sorts the distinct locks by address into `locked`, and returns their number.
  @inline(__always)
  private static func orderLocks(_ waiters: Nodes, _ count: Int) -> Int {
    var locks = 0
    next: for index in 0..<count {
      guard let lock = waiters[index].source.pointee.lock else { continue }
      var position = locks
      while position > 0 {
        let before = waiters[Int(waiters[position - 1].locked)].lock
        if before == lock { continue next }
        if before < lock { break }
        position -= 1
      }
      var shifted = locks
      while shifted > position {
        waiters[shifted].locked = waiters[shifted - 1].locked
        shifted -= 1
      }
      waiters[position].locked = UInt8(truncatingIfNeeded: index)
      locks += 1
    }
    return locks
  }

  /// Stores the order of attempts in `attempted`: as given, or any order with equal probability (Fisher and Yates).
  @inline(__always)
  private static func orderAttempts(
    _ waiters: Nodes,
    _ count: Int,
    _ biased: Bool,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) {
    for index in 0..<count { waiters[index].attempted = UInt8(truncatingIfNeeded: index) }
    if biased || count < 2 { return }
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    // Not the host itself: it would be retained, for two atomics in each select.
    let hostChooses = scheduler._withUnsafeGuaranteedRef { $0.host.controlsOrder }
    var random = carrier.pointee.drawNumber()
    for index in stride(from: count - 1, to: 0, by: -1) {
      let other: Int
      if hostChooses {
        other = index - scheduler._withUnsafeGuaranteedRef { $0.host.choose(index + 1) }
      } else {
        other = Int(((random >> 32) &* UInt64(index + 1)) >> 32)
        random = random &* 0x5851_F42D_4C95_7F2D &+ 0x1405_7B7E_F767_814F
      }
      (waiters[index].attempted, waiters[other].attempted) = (waiters[other].attempted, waiters[index].attempted)
    }
  }
}

extension SelectWaiter {
  /// The lock of the case's object.
  fileprivate var lock: UnsafePointer<SpinLock> {
    @inline(__always) get { source.pointee.lock.unsafelyUnwrapped }
  }
}
