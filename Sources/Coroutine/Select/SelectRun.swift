import Glibc
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
    while let (ready, answer) = tryCases(attempts, job) {
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
      enqueueAll(attempts, epoch)
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
  private static func tryCases(_ attempts: AttemptOrder, _ job: JobRef) -> (ready: Int, answer: SelectAnswer)? {
    for position in 0..<attempts.count {
      let answer = attempt(attempts[position], job)
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
  private static func enqueueAll(_ attempts: AttemptOrder, _ epoch: WaitEpoch) {
    for position in 0..<attempts.count {
      let waiter = attempts[position]
      guard let queue = waiter.pointee.source.pointee.queue else { continue }
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

  /// The waiter has its job from then on.
  @inline(__always)
  private static func attempt(_ waiter: SelectWaiterRef, _ job: JobRef) -> SelectAnswer {
    switch waiter.pointee.kind {
    case .operation:
      waiter.pointee.valueWaiter.waiter.job = job
      return perform(.attempt, waiter)
    case .timeout: return waiter.pointee.words[0] == 0 ? .yes : .no
    case .otherwise: return .no
    }
  }

  /// Performs any step but `finish`, which alone throws, and alone uses the memory.
  @inline(__always) @discardableResult
  private static func perform(_ step: SelectStep, _ waiter: SelectWaiterRef) -> SelectAnswer {
    (try? waiter.operate(step, waiter)).unsafelyUnwrapped
  }
}

// MARK: - Waiting

// How a select parks: with a timeout or without one, or without any case.

extension SelectRun {
  /// Parks until a case or the timeout, in nanoseconds, ends the wait.
  @inline(__always)
  static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    for source: UInt,
    _ timeout: UInt?,
    publish: (WaitEpoch) -> Void,
    withdraw: () -> Void
  ) throws -> UInt8 {
    if let timeout { return try park(carrier, job, for: source, atMost: timeout, publish, withdraw) }
    return try WaitQueue.park(carrier, job, .select, for: source, publish: publish, withdraw: withdraw)
  }

  private static func park(
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef,
    for source: UInt,
    atMost nanoseconds: UInt,
    _ publish: (WaitEpoch) -> Void,
    _ withdraw: () -> Void
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
}

// MARK: - What is ready

// The select case of a descriptor that the runtime owns: it is ready when a try may find something, or when the
// descriptor is closed. It takes nothing: what is there is taken by the body.

extension WatchedDescriptor {
  /// Creates a case of ``co_select(biased:_:)`` that is ready when the direction is.
  ///
  /// `body` gets 0, or the error number with which the kernel refused to watch the descriptor. `isReady` polls the
  /// descriptor before the select waits, if the runtime does not know its state. Dumps name the descriptor by `shown`,
  /// or by its own number.
  package func onReady<R>(
    _ direction: Direction,
    shown: Int32? = nil,
    isReady: @escaping @Sendable (Int32) -> Bool,
    _ body: @escaping (sending Int32) throws -> R
  ) -> SelectCase<R> {
    let readiness = self.direction(direction)
    let target = ReadySource(self, readiness, shown ?? number, isReady)
    return SelectCase(
      ReadyOperation.self,
      target: target,
      lock: target.waitLock,
      queue: readiness.pointee.queue.unsafelyUnwrapped,
      needsPreparation: true,
      taking: body
    )
  }
}

/// What a case waits for; it holds the descriptor.
private final class ReadySource: Inspectable, Sendable {
  let descriptor: WatchedDescriptor
  // Sound because the record, in memory that is never freed, guards itself, and belongs to `descriptor`.
  nonisolated(unsafe) let readiness: ReadinessRef
  /// The number that dumps name.
  let shown: Int32
  let isReady: @Sendable (Int32) -> Bool

  init(
    _ descriptor: WatchedDescriptor,
    _ readiness: ReadinessRef,
    _ shown: Int32,
    _ isReady: @escaping @Sendable (Int32) -> Bool
  ) {
    self.descriptor = descriptor
    self.readiness = readiness
    self.shown = shown
    self.isReady = isReady
  }

  deinit { Inspection.letFinish(self) }

  var waitLock: UnsafePointer<SpinLock> { withUnsafePointer(to: readiness.pointee.lock) { $0 } }
  func inspect(_ names: JobNames) -> String { "descriptor \(shown)" }
  func verb(of queue: UInt?) -> String { "wait for" }
}

/// The word of the waiter: the refusal of the kernel, or of a simulated world.
private enum ReadyOperation: SelectOperation {
  static func prepare(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    watch(target, waiter)
    // READY can be stale: no failed try has been recorded since the last event, or since the start.
    let seen = target.readiness.word
    if seen.state == .ready, target.descriptor.enter() {
      if !isReady(target) { target.readiness.clear(seen) }
      target.descriptor.leave()
    }
  }

  /// Whether a try would find something; a simulated connection that is broken has no bytes that say so.
  private static func isReady(_ target: ReadySource) -> Bool {
    if let simulated = target.descriptor.simulated, simulated.failure != 0 { return true }
    return target.isReady(target.descriptor.number)
  }

  /// Polls also if nothing has been reported: an event may be in the kernel, which no thread has taken yet.
  ///
  /// Costs a system call, which a select that waits for the event does not need.
  static func prepareToDecide(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    watch(target, waiter)
    let seen = target.readiness.word
    guard seen.state != .closed, target.descriptor.enter() else { return }
    if !isReady(target) {
      target.readiness.clear(seen)
    } else if seen.state != .ready {
      // The event does the same once more when a thread takes it.
      target.readiness.happened(seen.generation, sticks: false)
    }
    target.descriptor.leave()
  }

  private static func watch(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    do {
      if target.descriptor.simulated == nil {
        // A simulated world waits for real descriptors only where that is declared; its run fails.
        try Host.requireReal { "descriptor \(target.descriptor.number) in a select" }
        try target.descriptor.watch()
      }
    } catch {
      waiter.pointee.words[0] = UInt((error as? DescriptorRefusal)?.code ?? EPERM)
    }
  }

  static func attempt(_ target: ReadySource, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.pointee.words[0] == 0 && target.readiness.beginWaiting() ? .no : .yes
  }

  static func finish(_ target: ReadySource, _ waiter: SelectWaiterRef) -> Int32 {
    return Int32(truncatingIfNeeded: waiter.pointee.words[0])
  }

  static func dispose(_ target: ReadySource, _ waiter: SelectWaiterRef) {
    // The select has unlinked its waiter by itself.
    target.readiness.pointee.lock.lock()
    target.readiness.endWaitingIfAlone()
    target.readiness.pointee.lock.unlock()
  }
}

// MARK: - The order of the cases

// The two orders in which a select visits its cases. Each is stored in the waiters, one byte a case, so that it needs
// no memory of its own. All is inlined, because it is a part of every select.

/// The objects of a select by the addresses of their locks, each lock once.
///
/// All selects take locks in this order, so no cycle of selects can form.
struct LockOrder {
  private let waiters: SelectWaiterRef
  /// The number of locks.
  private let count: Int

  /// Sorts the locks of `cases` cases by insertion: there are few, and most often they are in order already.
  @inline(__always)
  init(_ waiters: SelectWaiterRef, _ cases: Int) {
    var locks = 0
    next: for index in 0..<cases {
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
    self.waiters = waiters
    count = locks
  }

  /// The first case, in the order of the cases, that has the lock at `position`.
  private subscript(position: Int) -> SelectWaiterRef {
    @inline(__always) get { waiters + Int(waiters[position].locked) }
  }

  @inline(__always)
  func lock() {
    for position in 0..<count { self[position].pointee.lock.pointee.lock() }
  }

  @inline(__always)
  func unlock() {
    for position in 0..<count { self[position].pointee.lock.pointee.unlock() }
  }

  /// The address of the object that has the first lock, 0 without locks: a dump takes that lock to read the cases.
  var firstTarget: UInt {
    @inline(__always) get {
      let target = count > 0 ? self[0].pointee.source.pointee.target : nil
      return UInt(bitPattern: target.map { Unmanaged.passUnretained($0).toOpaque() })
    }
  }
}

/// The cases of a select in the order of their attempts: as given when biased, otherwise any order, each with equal
/// probability (Fisher and Yates).
struct AttemptOrder {
  private let waiters: SelectWaiterRef
  /// The number of cases.
  let count: Int

  @inline(__always)
  init(
    _ waiters: SelectWaiterRef,
    _ count: Int,
    _ biased: Bool,
    _ carrier: UnsafeMutablePointer<Carrier>,
    _ job: JobRef
  ) {
    self.waiters = waiters
    self.count = count
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

  /// The index of the case that is attempted at `position`.
  @inline(__always)
  func index(at position: Int) -> Int { Int(waiters[position].attempted) }

  subscript(position: Int) -> SelectWaiterRef {
    @inline(__always) get { waiters + index(at: position) }
  }
}

extension SelectWaiter {
  /// The lock of the case's object.
  var lock: UnsafePointer<SpinLock> {
    @inline(__always) get { source.pointee.lock.unsafelyUnwrapped }
  }
}

// MARK: - Operations

/// One kind of operation that a select can perform: receive, send, await, lock, acquire.
///
/// An object takes part in selects by implementing this. It has one ``SpinLock``, and under it the ``WaitQueue`` in
/// which the operation waits. A select relies only on the rules of Waiter.swift:
/// - The object claims a wait under its lock, through a waiter that it has unlinked, with `waiter.pointee.reason`.
/// - It skips a waiter whose claim fails.
/// - It wakes after it has left the lock (`WaitQueue.claimFirst` and `waiter.wake()` do exactly that).
///
/// While a select's waiter is queued, the thread that claims it commits the operation, as for any other waiter of the
/// object. It does not see that the waiter is a select's.
///
/// If waiters carry a value (an element, a number of permits), all waiters of the object are ``ValueWaiter``s. A
/// select's value is in the five words that its case started with, unless `prepare` stores another address.
///
/// The select locks, queues, parks and unlinks. A committed operation stays committed: neither an error of the body nor
/// a cancellation of the job undoes it. Lock+Select.swift has examples.
@usableFromInline
protocol SelectOperation {
  associatedtype Target: AnyObject
  /// The type of the argument of the body.
  associatedtype Output

  /// Called before any lock is taken, once, if the case says so (`needsPreparation`). May run foreign code.
  static func prepare(_ target: Target, _ waiter: SelectWaiterRef)

  /// Called in place of `prepare` if the select will not wait, or prefers the first case that is ready.
  ///
  /// What the attempt answers then counts, so it must not be out of date.
  static func prepareToDecide(_ target: Target, _ waiter: SelectWaiterRef)

  /// Commits the operation if that needs no wait.
  ///
  /// Called under the lock of the object, and those of other objects: runs no foreign code, takes no other lock, wakes
  /// no waiter.
  static func attempt(_ target: Target, _ waiter: SelectWaiterRef) -> SelectAnswer

  /// Makes the room that an attempt has found missing, without any lock.
  static func makeRoom(_ target: Target, _ waiter: SelectWaiterRef)

  /// Returns the argument of the body, or throws an error instead, after the operation has committed.
  ///
  /// `attempt` has committed it, or the thread that claimed the waiter. No lock is held.
  static func finish(_ target: Target, _ waiter: SelectWaiterRef) throws -> Output

  /// Called at the end, once after `prepare`, also for an unselected case. May run foreign code.
  static func dispose(_ target: Target, _ waiter: SelectWaiterRef)
}

extension SelectOperation {
  @inlinable
  static func prepare(_ target: Target, _ waiter: SelectWaiterRef) {}
  @inlinable
  static func prepareToDecide(_ target: Target, _ waiter: SelectWaiterRef) { prepare(target, waiter) }
  @inlinable
  static func dispose(_ target: Target, _ waiter: SelectWaiterRef) {}
  @inlinable
  static func makeRoom(_ target: Target, _ waiter: SelectWaiterRef) {}
}

/// The result of an attempt: no; yes; yes and a waiter whose wait it has claimed, to wake after the locks are left; or
/// not yet, because memory must be allocated outside the locks.
@usableFromInline
struct SelectAnswer {
  @usableFromInline let word: UInt

  @inlinable
  init(_ word: UInt) { self.word = word }

  @inlinable static var no: SelectAnswer { SelectAnswer(0) }
  @inlinable static var yes: SelectAnswer { SelectAnswer(1) }
  @inlinable static var needsRoom: SelectAnswer { SelectAnswer(2) }
  @inlinable
  static func yes(waking waiter: UnsafeMutablePointer<Waiter>?) -> SelectAnswer {
    SelectAnswer(max(1, UInt(bitPattern: waiter)))
  }

  @inlinable @inline(__always)
  func wake() { if word > 1 { UnsafeMutablePointer<Waiter>(bitPattern: word).unsafelyUnwrapped.wake() } }
}

/// The function of an operation to call.
///
/// `finish` runs the body too.
@usableFromInline
enum SelectStep: UInt8, Sendable { case prepare, prepareToDecide, attempt, makeRoom, dispose, finish }

/// The functions of an operation and of its body, without their types: one function that captures nothing, so that
/// creating it allocates nothing.
///
/// Only `finish` throws, and initialises the memory for the body's result.
@usableFromInline
typealias SelectOperate = (SelectStep, SelectWaiterRef, UnsafeMutableRawPointer) throws -> SelectAnswer

/// Such a function in a struct, which keeps its calling convention fixed when it is stored or converted (SelectBody).
@usableFromInline
struct SelectFunction {
  @usableFromInline let call: SelectOperate
  @inlinable @inline(__always)
  init(_ call: @escaping SelectOperate) { self.call = call }
}

/// The address of a case in a running select.
@usableFromInline typealias SelectWaiterRef = UnsafeMutablePointer<SelectWaiter>

extension SelectOperation {
  @inlinable @inline(__always)
  static func perform(_ step: SelectStep, _ waiter: SelectWaiterRef) -> SelectAnswer {
    waiter.target(Target.self)._withUnsafeGuaranteedRef { target in
      switch step {
      case .attempt: return attempt(target, waiter)
      case .prepare: prepare(target, waiter)
      case .prepareToDecide: prepareToDecide(target, waiter)
      case .makeRoom: makeRoom(target, waiter)
      case .dispose: dispose(target, waiter)
      case .finish: break
      }
      return .yes
    }
  }
}

extension SelectWaiterRef {
  /// Calls the function of the case.
  ///
  /// A function in memory is retained for a call, although the case holds it. Usually it has captured nothing, so there
  /// is nothing to retain; unspecialised code captures its types.
  @inlinable @inline(__always)
  func operate(_ step: SelectStep, _ result: UnsafeMutableRawPointer) throws -> SelectAnswer {
    // Sound because a function value is a code pointer and a context pointer, and has no context if that is 0.
    let words = withUnsafePointer(to: pointee.source.pointee.operate) {
      UnsafeRawPointer($0).assumingMemoryBound(to: (code: UInt, context: UInt).self).pointee
    }
    if words.context == 0 {
      return try unsafeBitCast((code: words.code, context: UInt(0)), to: SelectFunction.self).call(step, self, result)
    }
    return try pointee.source.pointee.operate.call(step, self, result)
  }

  @inlinable var waiter: UnsafeMutablePointer<Waiter> {
    @inline(__always) get { UnsafeMutableRawPointer(self).assumingMemoryBound(to: Waiter.self) }
  }

  /// The target, which the case holds: `target` is the first field of the case.
  @inlinable @inline(__always)
  func target<Target: AnyObject>(_ type: Target.Type) -> Unmanaged<Target> {
    UnsafeRawPointer(pointee.source).assumingMemoryBound(to: Unmanaged<Target>.self).pointee
  }
}

// MARK: - What dumps show

// A select's cases are on the stack of the waiting job, which no reference keeps alive. They are read under the lock of
// one of the select's own sources, after the word was seen WAITING under that lock. To end, the select must take that
// lock to unlink its waiter, or it was claimed under it; so its frame stays as long as the lock is held (Waiter.swift,
// invariant 4).

extension Inspection {
  /// Returns the cases of a select that has waited in `source` since `word`; nil if it no longer waits.
  static func cases(of job: JobRef, _ word: UInt64, in source: any Inspectable) -> [InspectedCase]? {
    // Reserved before the lock is taken.
    var cases: [InspectedCase] = []
    cases.reserveCapacity(SelectRun.most)
    let lock = source.waitLock
    lock.pointee.lock()
    defer { lock.pointee.unlock() }
    let waiters = SelectWaiterRef(bitPattern: job.pointee.selectWaiters.load(ordering: .acquiring))
    let count = job.pointee.selectCount.load(ordering: .relaxed)
    // Read after the address: the address of a later select would come with a later word.
    guard let waiters, job.pointee.wait.load(ordering: .acquiring) == word else { return nil }
    for index in 0..<Int(count) {
      let (waiter, source) = (waiters + index, waiters[index].source)
      let single = InspectedCase(
        source: source.pointee.target,
        queue: source.pointee.queue.map { UInt(bitPattern: $0) },
        timeout: waiter.pointee.kind == .timeout ? UInt64(waiter.pointee.words[0]) : nil
      )
      cases.append(single)
    }
    return cases
  }
}

/// A case of a select, copied by a dump under the lock.
struct InspectedCase {
  let source: AnyObject?
  let queue: UInt?
  /// In nanoseconds.
  let timeout: UInt64?
}
