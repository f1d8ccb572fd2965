import Synchronization

/// The algorithm of a select, without types; Select.swift has its steps, and the argument for them.
@usableFromInline
enum SelectRun {
  /// The index of the case that commits.
  @usableFromInline typealias Winner = Int

  /// The largest number of cases: their numbers share a byte with the other reasons for the end of a wait.
  static let most = 240

  /// Commits one case, and returns its index.
  ///
  /// Throws if the coroutine is cancelled; then nothing is committed. In both cases every unselected case has been
  /// disposed of, and no waiter is linked any more.
  @usableFromInline
  static func run(
    _ waiters: SelectWaiterRef,
    _ count: Int,
    _ biased: Bool,
    needsPreparation: Bool
  ) throws -> Winner {
    if count > most { throw CoroutineError.tooManyCases(count) }
    guard needsPreparation else { return try commit(waiters, count, biased, mayGiveWay: true) }
    // Before the preparation, because it may let others run: what a case has found would be out of date.
    _ = try Carrier.beginWaiting()
    let decides = biased || (0..<count).contains { mayEndAtOnce(waiters + $0) }
    for index in 0..<count where waiters[index].source.pointee.needsPreparation {
      perform(decides ? .prepareToDecide : .prepare, waiters + index)
    }
    var winner: Winner?
    defer {
      for index in 0..<count where index != winner && waiters[index].source.pointee.needsPreparation {
        perform(.dispose, waiters + index)
      }
    }
    let committed = try commit(waiters, count, biased, mayGiveWay: false)
    winner = committed
    return committed
  }

  /// Disposes of the selected case, after its body.
  @usableFromInline
  static func dispose(_ waiter: SelectWaiterRef) {
    if waiter.pointee.source.pointee.needsPreparation { perform(.dispose, waiter) }
  }

  private static func running() throws -> (UnsafeMutablePointer<Carrier>, JobRef) {
    let (carrier, job) = try Carrier.requireJob()
    try job.checkCancelled()
    return (carrier, job)
  }

  // MARK: The passes
  //
  // All are inlined into `run`, which is compiled once, because each case of each select passes through them.

  @inline(__always)
  private static func commit(
    _ waiters: SelectWaiterRef,
    _ count: Int,
    _ biased: Bool,
    mayGiveWay: Bool
  ) throws -> Winner {
    // The operands and `prepare` were foreign code: the current thread, and the cancellation, must be read here.
    let (carrier, job) = try mayGiveWay ? Carrier.beginWaiting() : running()
    let locks = LockOrder(waiters, count)
    let attempts = AttemptOrder(waiters, count, biased, carrier, job)
    locks.lock()
    while let (ready, answer) = tryCases(attempts) {
      locks.unlock()
      if answer.word != SelectAnswer.needsRoom.word {
        answer.wake()
        return ready
      }
      perform(.makeRoom, waiters + ready)
      locks.lock()
    }
    let last = lastResort(waiters, count)
    if let last, waiters[last].kind == .otherwise {
      locks.unlock()
      return last
    }
    // What dumps read.
    job.pointee.selectWaiters.store(UInt(bitPattern: waiters), ordering: .releasing)
    job.pointee.selectCount.store(UInt8(truncatingIfNeeded: count), ordering: .relaxed)
    let timeout = last.map { waiters[$0].words[0] }
    let reason = try park(carrier, job, for: locks.firstTarget, timeout) { epoch in
      enqueueAll(attempts, job, epoch)
      locks.unlock()
    } withdraw: {
      dequeueUnselected(waiters, count, winner: nil)
    }
    let winner = committed(by: reason, timeout: last)
    dequeueUnselected(waiters, count, winner: winner)
    return winner
  }

  /// Attempts the cases until one is ready or needs room; returns its index, and what it answers.
  ///
  /// Called with all locks.
  @inline(__always)
  private static func tryCases(_ attempts: AttemptOrder) -> (ready: Int, answer: SelectAnswer)? {
    for position in 0..<attempts.count {
      let answer = attempt(attempts[position])
      if answer.word != 0 { return (attempts.index(at: position), answer) }
    }
    return nil
  }

  /// The case that ends a select in which no other one is ready: the first `otherwise`, now, or the shortest timeout.
  @inline(__always)
  private static func lastResort(_ waiters: SelectWaiterRef, _ count: Int) -> Winner? {
    var found: Winner?
    for index in 0..<count where waiters[index].kind != .operation {
      if waiters[index].kind == .otherwise { return index }
      if found.map({ waiters[index].words[0] < waiters[$0].words[0] }) ?? true { found = index }
    }
    return found
  }

  /// Links a waiter at every object.
  ///
  /// In the order of the attempts: of two cases in one queue, either is first with equal probability, unless biased.
  /// Called with all locks.
  @inline(__always)
  private static func enqueueAll(_ attempts: AttemptOrder, _ job: JobRef, _ epoch: WaitEpoch) {
    for position in 0..<attempts.count {
      let waiter = attempts[position]
      guard let queue = waiter.pointee.source.pointee.queue else { continue }
      waiter.pointee.valueWaiter.waiter.job = job
      queue.pointee.append(waiter.waiter, epoch)
    }
  }

  /// Unlinks the waiters of all cases but the winner, whose waiter the thread that claimed it has unlinked.
  @inline(__always)
  private static func dequeueUnselected(_ waiters: SelectWaiterRef, _ count: Int, winner: Winner?) {
    for index in 0..<count where index != winner {
      guard let queue = waiters[index].source.pointee.queue else { continue }
      let lock = waiters[index].lock
      lock.pointee.lock()
      queue.pointee.remove((waiters + index).waiter)
      lock.pointee.unlock()
    }
  }

  /// The case that has ended the wait.
  @inline(__always)
  private static func committed(by reason: UInt8, timeout: Winner?) -> Winner {
    if reason >= WakeReason.firstCase { return Winner(reason - WakeReason.firstCase) }
    guard reason == WakeReason.timer, let timeout else { misuse("a select was woken by none of its cases") }
    return timeout
  }

  // MARK: One case

  /// Whether the select ends without a wait because of this case.
  private static func mayEndAtOnce(_ waiter: SelectWaiterRef) -> Bool {
    switch waiter.pointee.kind {
    case .operation: false
    case .timeout: waiter.pointee.words[0] == 0
    case .otherwise: true
    }
  }

  @inline(__always)
  private static func attempt(_ waiter: SelectWaiterRef) -> SelectAnswer {
    switch waiter.pointee.kind {
    case .operation: perform(.attempt, waiter)
    case .timeout: waiter.pointee.words[0] == 0 ? .yes : .no
    case .otherwise: .no
    }
  }

  /// Performs any step but `finish`, which alone throws, and alone uses the memory.
  @inline(__always) @discardableResult
  private static func perform(_ step: SelectStep, _ waiter: SelectWaiterRef) -> SelectAnswer {
    (try? waiter.operate(step, waiter)).unsafelyUnwrapped
  }
}
