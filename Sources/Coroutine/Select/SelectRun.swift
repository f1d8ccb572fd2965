import Synchronization

/// The select's algorithm, which knows no types: see the head of Select.swift, whose numbers the comments give.
@usableFromInline
enum SelectRun {
  @usableFromInline typealias Nodes = UnsafeMutablePointer<SelectNode>

  /// How many cases one select may have: their numbers share a byte with the other reasons for the end of a wait.
  static let most = 240

  /// Commits one case and answers which.
  ///
  /// Throws what cancellation throws; nothing is committed then. Either way every case but the winner has been disposed
  /// of, and no node is left anywhere.
  @usableFromInline
  static func run(_ nodes: Nodes, _ count: Int, _ biased: Bool, needsPreparation: Bool) throws -> Int {
    if count > most { misuse("A select takes at most \(most) cases, not \(count): let many send into one channel.") }
    guard needsPreparation else { return try commit(nodes, count, biased) }
    for index in 0..<count where nodes[index].source.pointee.needsPreparation { perform(.prepare, nodes + index) }
    var winner = -1
    defer {
      for index in 0..<count where index != winner && nodes[index].source.pointee.needsPreparation {
        perform(.dispose, nodes + index)
      }
    }
    winner = try commit(nodes, count, biased)
    return winner
  }

  @inline(__always)
  private static func commit(_ nodes: Nodes, _ count: Int, _ biased: Bool) throws -> Int {
    // Operands and prepare were foreign code: where we are, and whether we are cancelled, is known only now.
    let (turn, job) = try Turn.beginWaiting()
    let locks = orderLocks(nodes, count)
    orderAttempts(nodes, count, biased, turn, job)
    // 2
    let key = turn.pointee.lockKey
    for position in 0..<locks { nodes[position].hold = nodes[Int(nodes[position].locked)].lock.pointee.lock(as: key) }
    // 3
    for position in 0..<count {
      let index = Int(nodes[position].attempted)
      let answer = attempt(nodes + index)
      if answer.word != 0 {
        unlock(nodes, locks)
        answer.wake()
        return index
      }
    }
    var timeout: Int?
    for index in 0..<count where nodes[index].kind != .place {
      if nodes[index].kind == .otherwise {
        unlock(nodes, locks)
        return index
      }
      if timeout.map({ nodes[index].words[0] < nodes[$0].words[0] }) ?? true { timeout = index }
    }
    // 4
    // In the order of the attempts: of two cases in one queue either comes first with equal probability, unless biased.
    job.pointee.selectNodes.store(UInt(bitPattern: nodes), ordering: .releasing)
    job.pointee.selectCount.store(UInt8(truncatingIfNeeded: count), ordering: .relaxed)
    let source = locks > 0 ? nodes[Int(nodes[0].locked)].source.pointee.place : nil
    let token = job.beginWait(.select, for: UInt(bitPattern: source.map { Unmanaged.passUnretained($0).toOpaque() }))
    for position in 0..<count {
      let index = Int(nodes[position].attempted)
      guard let queue = nodes[index].source.pointee.queue else { continue }
      nodes[index].slotted.node.job = job
      nodes[index].slotted.node.token = token
      queue.pointee.append((nodes + index).waitNode)
    }
    // 5
    unlock(nodes, locks)
    let reason = timeout.map { park(turn, job, token, nodes[$0].words[0]) } ?? Turn.park(turn, job)
    var winner = -1
    if reason >= WakeReason.firstCase {
      winner = Int(reason - WakeReason.firstCase)
    } else if reason == WakeReason.timer, let timeout {
      winner = timeout
    }
    // 6: the winner's node was unlinked by whoever claimed it.
    for index in 0..<count where index != winner {
      guard let queue = nodes[index].source.pointee.queue else { continue }
      let lock = nodes[index].lock
      // Asked anew: the wait may have ended on another scheduler's turn.
      let hold = lock.pointee.lock(as: .current)
      queue.pointee.remove((nodes + index).waitNode)
      lock.pointee.unlock(hold)
    }
    if winner < 0 { throw job.cancellation() ?? CancellationError() }
    return winner
  }

  @inline(__always)
  private static func attempt(_ node: Nodes) -> SelectAnswer {
    switch node.pointee.kind {
    case .place: perform(.attempt, node)
    case .timeout: node.pointee.words[0] == 0 ? .yes : .no
    case .otherwise: .no
    }
  }

  /// Any step but `finish`, which alone throws, and alone uses the memory.
  @inline(__always) @discardableResult
  private static func perform(_ step: SelectStep, _ node: Nodes) -> SelectAnswer {
    (try? node.pointee.source.pointee.operate(step, node, node)).unsafelyUnwrapped
  }

  @inline(__always)
  private static func unlock(_ nodes: Nodes, _ locks: Int) {
    for position in 0..<locks {
      nodes[Int(nodes[position].locked)].lock.pointee.unlock(nodes[position].hold)
    }
  }

  /// Of the case that has won, after its body.
  @usableFromInline
  static func dispose(_ node: Nodes) { if node.pointee.source.pointee.needsPreparation { perform(.dispose, node) } }

  /// Parks for `nanoseconds` at most.
  private static func park(
    _ turn: UnsafeMutablePointer<Turn>,
    _ job: JobRef,
    _ token: WaitToken,
    _ nanoseconds: UInt
  ) -> UInt8 {
    let scheduler = job.pointee.scheduler.load(ordering: .relaxed)
    return scheduler._withUnsafeGuaranteedRef { scheduler in
      let now = scheduler.clock
      let (end, overflows) = now.addingReportingOverflow(UInt64(nanoseconds))
      var timer = TimerNode(deadline: overflows ? .max : end, effect: .wake(job, token))
      return withUnsafeMutablePointer(to: &timer) { timer in
        scheduler.add(timer, now: now)
        let reason = Turn.park(turn, job)
        if reason != WakeReason.timer { scheduler.remove(timer) }
        return reason
      }
    }
  }

  /// A select of nothing.
  @usableFromInline
  static func waitForCancellation() throws -> Never {
    let (turn, job) = try Turn.beginWaiting()
    job.pointee.selectCount.store(0, ordering: .relaxed)
    _ = job.beginWait(.select)
    _ = Turn.park(turn, job)
    throw job.cancellation() ?? CancellationError()
  }

  /// A timeout's length; zero: ready at once.
  @usableFromInline
  static func nanoseconds(_ duration: Duration) -> UInt {
    duration > .zero ? UInt(truncatingIfNeeded: duration.deadline(after: 0)) : 0
  }

  // MARK: Orders

  /// Sorts the distinct locks by address into `locked`; answers how many there are.
  @inline(__always)
  private static func orderLocks(_ nodes: Nodes, _ count: Int) -> Int {
    var locks = 0
    next: for index in 0..<count {
      guard let lock = nodes[index].source.pointee.lock else { continue }
      var position = locks
      while position > 0 {
        let before = nodes[Int(nodes[position - 1].locked)].lock
        if before == lock { continue next }
        if before < lock { break }
        position -= 1
      }
      var shifted = locks
      while shifted > position {
        nodes[shifted].locked = nodes[shifted - 1].locked
        shifted -= 1
      }
      nodes[position].locked = UInt8(truncatingIfNeeded: index)
      locks += 1
    }
    return locks
  }

  /// Puts the order of the attempts into `attempted`: as given, or every order equally likely (Fisher and Yates).
  @inline(__always)
  private static func orderAttempts(
    _ nodes: Nodes,
    _ count: Int,
    _ biased: Bool,
    _ turn: UnsafeMutablePointer<Turn>,
    _ job: JobRef
  ) {
    for index in 0..<count { nodes[index].attempted = UInt8(truncatingIfNeeded: index) }
    if biased || count < 2 { return }
    let simulation = job.pointee.scheduler.load(ordering: .relaxed)._withUnsafeGuaranteedRef { $0.simulation }
    var random = turn.pointee.drawNumber()
    for index in stride(from: count - 1, to: 0, by: -1) {
      let other: Int
      if let simulation {
        other = index - simulation.choose(index + 1)
      } else {
        other = Int(((random >> 32) &* UInt64(index + 1)) >> 32)
        random = random &* 0x5851_F42D_4C95_7F2D &+ 0x1405_7B7E_F767_814F
      }
      (nodes[index].attempted, nodes[other].attempted) = (nodes[other].attempted, nodes[index].attempted)
    }
  }
}

extension SelectNode {
  /// The lock of a place's case.
  fileprivate var lock: UnsafePointer<SpinLock> {
    @inline(__always) get { source.pointee.lock.unsafelyUnwrapped }
  }
}

extension Turn {
  /// A random number: a Weyl sequence that begins with the turn, mixed on the way out (SplitMix).
  ///
  /// The turn's own, so that no select shares a word with one on another thread.
  @inline(__always)
  mutating func drawNumber() -> UInt64 {
    random &+= 0x9E37_79B9_7F4A_7C15
    var mixed = (random ^ (random >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }
}
