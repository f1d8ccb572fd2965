internal import CCoroutineRuntime
public import Dispatch
import Synchronization

// Combinators: promises of several outcomes.
// - The results are in the order of the input.
// - The deciding outcome is passed on at once, without a queue in between.
// - Cancelling the combined promise cancels each member that has no other waiter.
// - Once the combined promise is decided, the other members are left running, or cancelled if `losers` says so. Their
//   outcomes count as observed.

/// The values of a combinator, one for each member.
///
/// The combinator's lock covers them.
@usableFromInline
final class CollectedValues<Element> {
  @exclusivity(unchecked) @usableFromInline var values: [Element?]
  @inlinable init(_ count: Int) { values = Array(repeating: nil, count: count) }
  @inlinable func put(_ value: Element, _ index: Int) { values[index] = value }
  @inlinable var all: [Element] { values.map { $0.unsafelyUnwrapped } }
}

extension Promise {
  /// Returns a promise for the values of all promises, in their order.
  ///
  /// The first failure rejects it at once. For no promises, the value is `[]`. Linear in the number of promises.
  @inlinable
  public static func all(
    _ promises: [Promise],
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<[Success]> {
    .collecting(
      promises,
      losers,
      LaunchSite(file: file, line: line),
      read: { member, _ in member.completion.value(as: Success.self) },
      make: { $0 }
    )
  }

  /// Returns a promise for the values of all promises, by their keys.
  ///
  /// The first failure rejects it at once. For no promises, the value is `[:]`.
  public static func all<Key: Hashable & Sendable>(
    _ promises: [Key: Promise],
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<[Key: Success]> {
    allByKey(promises, losers, LaunchSite(file: file, line: line)) { error, _ in error }
  }

  /// Returns a promise for the values of all promises, by their keys, which rejects with ``PromiseMemberError``.
  ///
  /// The error contains the key of the member that failed.
  public static func all<Key: Hashable & Sendable>(
    named promises: [Key: Promise],
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<[Key: Success]> {
    allByKey(promises, losers, LaunchSite(file: file, line: line)) { PromiseMemberError(key: $1, error: $0) }
  }

  private static func allByKey<Key: Hashable & Sendable>(
    _ promises: [Key: Promise],
    _ losers: Losers,
    _ launchSite: LaunchSite,
    failing: @escaping (_ error: any Error, _ key: Key) -> any Error
  ) -> Promise<[Key: Success]> {
    // The order decides which of several failures is seen, and in which order the losers are cancelled. A dictionary
    // has another one each time, also within one process; a world repeats its runs, so there it is that of the keys'
    // texts.
    var all = Array(promises)
    if cco_has_worlds() { all = all.map { ("\($0.key)", $0) }.sorted { $0.0 < $1.0 }.map(\.1) }
    let (keys, members) = (all.map(\.key), all.map(\.value))
    return .collecting(members, losers, launchSite) { member, _ in
      member.completion.value(as: Success.self)
    } make: {
      Dictionary(uniqueKeysWithValues: zip(keys, $0))
    } failing: {
      failing($0, keys[$1])
    }
  }

  /// Returns a promise for what `make` makes of the values that `read` takes from the members.
  ///
  /// Unless `continues`, the first failure rejects it.
  @inlinable
  static func collecting<Value>(
    _ members: [AnyPromise],
    _ losers: Losers,
    _ launchSite: LaunchSite,
    continues: Bool = false,
    read: @escaping (_ member: AnyPromise, _ index: Int) -> Value,
    make: @escaping ([Value]) -> Success,
    failing: @escaping (_ error: any Error, _ index: Int) -> any Error = { error, _ in error }
  ) -> Promise {
    let collected = CollectedValues<Value>(members.count)
    var failure: (error: any Error, index: Int)?
    return combining(members, losers, launchSite) { member, index, isLast in
      if member.hasFailed, !continues {
        failure = (member.completion.pointee.failure.unsafelyUnwrapped, index)
        return true
      }
      collected.put(read(member, index), index)
      return isLast
    } outcome: {
      if let failure { .failure(failing(failure.error, failure.index)) } else { .success(make(collected.all)) }
    }
  }

  /// Returns a promise that settles with `outcome` once `collect` returns true, or at once without members.
  @inlinable
  static func combining(
    _ members: [AnyPromise],
    _ losers: Losers,
    _ launchSite: LaunchSite,
    collect: @escaping (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool,
    outcome: @escaping () -> Result<Success, any Error>
  ) -> Promise {
    let combined = Promise(launchSite: launchSite)
    if members.isEmpty {
      combined.settle(outcome())
    } else {
      combined.wait(for: members, losers, collect: collect) {
        unsafeDowncast($0, to: Promise.self).settle(outcome())
      }
    }
    return combined
  }

  /// Returns a promise for the outcomes of all promises, in their order.
  ///
  /// It never rejects. For no promises, the value is `[]`.
  public static func allSettled(
    _ promises: [Promise],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<[Result<Success, any Error>]> {
    .collecting(
      promises,
      .leftRunning,
      LaunchSite(file: file, line: line),
      continues: true,
      read: { member, _ in member.completion.settledOutcome(as: Success.self) },
      make: { $0 }
    )
  }

  /// Returns a promise for the first value.
  ///
  /// If all promises fail, it rejects with ``AggregateError``, which contains the failures in the order of the input.
  /// For no promises, it rejects with ``AggregateError`` too.
  public static func any(
    _ promises: [Promise],
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise {
    first(of: promises, losers, LaunchSite(file: file, line: line)) { !$0.hasFailed }
  }

  /// Returns a promise for the outcome of the first promise to settle.
  ///
  /// For no promises, it rejects with ``AggregateError``.
  public static func race(
    _ promises: [Promise],
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise {
    first(of: promises, losers, LaunchSite(file: file, line: line)) { _ in true }
  }

  private static func first(
    of promises: [Promise],
    _ losers: Losers,
    _ launchSite: LaunchSite,
    where wins: @escaping (AnyPromise) -> Bool
  ) -> Promise {
    let failures = CollectedValues<any Error>(promises.count)
    var winner: Result<Success, any Error>?
    return combining(promises, losers, launchSite) { member, index, isLast in
      if wins(member) {
        winner = member.completion.settledOutcome(as: Success.self)
        return true
      }
      failures.put(member.completion.pointee.failure.unsafelyUnwrapped, index)
      return isLast
    } outcome: {
      winner ?? .failure(AggregateError(errors: failures.all))
    }
  }
}

/// The error that says which member of a dictionary of promises has failed.
public struct PromiseMemberError<Key: Hashable & Sendable>: Error, CustomStringConvertible {
  /// The key of the member.
  public var key: Key
  /// The failure of the member.
  public var error: any Error
  /// Creates the error.
  public init(key: Key, error: any Error) { (self.key, self.error) = (key, error) }
  /// A sentence that describes the error.
  public var description: String { "\(asLine(key)) has failed: \(asLine(error))" }
}

// MARK: - Different types

extension Promise where Success == Void {
  /// Returns a promise for the values of promises of different types, as a tuple.
  ///
  /// The first failure rejects it at once.
  public static func all<each Value: Sendable>(
    _ promises: repeat Promise<each Value>,
    losers: Losers = .leftRunning,
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<(repeat each Value)> {
    collectingTypes(repeat each promises, losers: losers, LaunchSite(file: file, line: line))
  }

  static func collectingTypes<each Value: Sendable>(
    _ promises: repeat Promise<each Value>,
    losers: Losers,
    _ launchSite: LaunchSite
  ) -> Promise<(repeat each Value)> {
    var members: [AnyPromise] = []
    var readers: [(AnyPromise) -> any Sendable] = []
    repeat members.append(each promises)
    repeat readers.append(Self.reader((each Value).self))
    let read = readers
    return .collecting(members, losers, launchSite) {
      read[$1]($0)
    } make: { values in
      var next = values.startIndex
      return (repeat Self.value((each Value).self, values, &next))
    }
  }

  private static func reader<Value: Sendable>(_ type: Value.Type) -> (AnyPromise) -> any Sendable {
    { $0.completion.value(as: type) }
  }

  private static func value<Value>(_ type: Value.Type, _ values: [any Sendable], _ next: inout Int) -> Value {
    defer { next += 1 }
    guard let value = values[next] as? Value else {
      misuse("The stored value of a member does not have the type of its promise.")
    }
    return value
  }
}

// MARK: - Members

extension AnyPromise {
  /// Whether a combinator cancels the unselected members once another member has decided it.
  ///
  /// The outcomes of unselected members count as observed in both cases.
  public enum Losers: Sendable {
    /// They keep running. Other waiters may need them.
    case leftRunning
    /// They are cancelled, unless they have other waiters.
    case cancelled
  }
}

/// The members of a combinator: its waiters in their queues, and the function that collects their outcomes.
///
/// A link that follows another promise, while its own waiter waits for its upstream, has that promise as its one member
/// (PromiseGraph.swift).
///
/// Invariants
///  1. Everything mutable is under `lock`, except `finish`, which the deciding thread runs once. It is a ThreadLock,
///     because collecting an outcome may allocate. It is taken before a member's lock (PromiseGraph.swift).
///  2. A member's pointer is set while the combinator's waiter is in the member's queue, or while the member's settling
///     thread has taken the waiter out and will call memberSettled (AnyPromise.swift, 1). A member is not owned, so a
///     member that nothing can settle any more is released and rejects. A passive combinator has a reference to each
///     member's memory while the pointer is set.
///  3. The waiters live as long as the combinator.
final class Members: Upstreams, @unchecked Sendable {
  // Sound because of the first invariant.

  /// Collects one outcome.
  ///
  /// Returns true if the combinator is decided.
  typealias Collect = (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool

  // Not shared: the member that decides settles the combinator, which tells.
  private let lock = ThreadLock()
  private let cancelsUnselected: Bool
  private let isPassive: Bool
  private let waiters: UnsafeMutablePointer<Waiter>
  // Apart from the waiters: ThreadSanitizer would count an access to a member as one to the waiter beside it.
  private let members: UnsafeMutablePointer<PromiseRef?>
  private let count: Int
  private var missing: Int
  private var attachedCount = 0
  private var collect: Collect?
  private var finish: ((AnyPromise) -> Void)?

  /// `isPassive`: whether the members' queues do not own the combinator.
  init(
    _ owner: AnyPromise,
    _ count: Int,
    _ losers: AnyPromise.Losers,
    isPassive: Bool,
    collect: @escaping Collect,
    finish: @escaping (AnyPromise) -> Void
  ) {
    self.count = count
    self.collect = collect
    self.finish = finish
    missing = count
    cancelsUnselected = losers == .cancelled
    self.isPassive = isPassive
    waiters = .allocate(capacity: count)
    members = .allocate(capacity: count)
    super.init()
    members.initialize(repeating: nil, count: count)
    let owner = Unmanaged.passUnretained(owner)
    for index in 0..<count {
      (waiters + index).initialize(to: Waiter(promise: owner, memberIndex: index))
      waiters[index].isUnowned = isPassive
    }
  }

  deinit {
    waiters.deallocate()
    members.deallocate()
  }

  /// Enters a member, before another thread knows of it.
  func enter(_ member: AnyPromise, at index: Int) {
    member.wasAwaited.store(true, ordering: .relaxed)
    members[index] = member.ref
    attachedCount += 1
    if isPassive { cco_retain_memory(member.ref.address) }
  }

  func waiter(at index: Int) -> UnsafeMutablePointer<Waiter> { waiters + index }

  /// Links the waiters of the members from `start` on, up to the first member that has settled.
  ///
  /// Returns that member's index, and the caller tells `owner`; the number of members, if there is no such member. A
  /// member is passed over if an earlier one has decided the combinator, which has then left this one. Each queue gets
  /// a reference. All under one lock: a pair of locks for each member cost `all` 7 to 12 %.
  func join(from start: Int, _ owner: Unmanaged<AnyPromise>) -> Int {
    lock.lock()
    defer { lock.unlock() }
    for index in start..<count {
      guard let member = members[index] else { continue }
      if !isPassive { _ = owner.retain() }
      if !member.object._withUnsafeGuaranteedRef({ $0.link(waiter(at: index)) }) { return index }
    }
    return count
  }

  override var hasAttached: Bool { lock.withLock { attachedCount > 0 } }

  override func attached() -> [PromiseRef] { lock.withLock { (0..<count).compactMap { members[$0] } } }

  override func takeAttached(_ leave: (PromiseRef, UnsafeMutablePointer<Waiter>, _ isUnselected: Bool) -> Void) {
    lock.lock()
    defer { lock.unlock() }
    for index in 0..<count where attachedCount > 0 {
      if let member = take(index) { leave(member, waiter(at: index), cancelsUnselected) }
    }
  }

  private func take(_ index: Int) -> PromiseRef? {
    guard let member = members[index] else { return nil }
    members[index] = nil
    attachedCount -= 1
    return member
  }

  /// Collects the outcome of a member that has settled.
  ///
  /// If that decides the combinator, it returns the functions to call and to release outside the lock.
  ///
  /// Also if the combinator has settled, the member is detached: a thread may be about to leave the members, and must
  /// not find this one, which is released when it has told all its waiters.
  func settled(_ index: Int, _ owner: AnyPromise) -> (finish: (AnyPromise) -> Void, collect: Collect)? {
    lock.lock()
    defer { lock.unlock() }
    guard let member = take(index) else { return nil }
    if isPassive {
      if !owner.node.pointee.isUnused.load(ordering: .relaxed) {
        member.completion.pointee.isObserved.store(true, ordering: .relaxed)
      }
      // The settling thread has the member: this is not the last reference to its memory.
      cco_release_memory(member.address)
    }
    guard !owner.completion.known.isSettled, let collect else { return nil }
    missing -= 1
    guard member.object._withUnsafeGuaranteedRef({ collect($0, index, missing == 0) }) else { return nil }
    defer { (self.collect, finish) = (nil, nil) }
    return finish.map { ($0, collect) }
  }
}

extension AnyPromise {
  /// Makes a new promise wait for all of `members`.
  @usableFromInline
  final func wait(
    for members: [AnyPromise],
    _ losers: Losers,
    collect: @escaping (_ member: AnyPromise, _ index: Int, _ isLast: Bool) -> Bool,
    finish: @escaping (AnyPromise) -> Void
  ) {
    isPassive = losers == .leftRunning
    let memberList = Members(self, members.count, losers, isPassive: isPassive, collect: collect, finish: finish)
    // All members are entered before the first can decide the combinator, which then leaves the others.
    for (index, member) in members.enumerated() { memberList.enter(member, at: index) }
    node.pointee.upstreams = memberList
    let reference = Unmanaged.passUnretained(self)
    var index = memberList.join(from: 0, reference)
    while index < members.count {
      if isPassive { _ = reference.retain() }
      members[index].ignore()
      Self.upstreamSettled(reference, index)
      index = memberList.join(from: index + 1, reference)
    }
  }

  /// Called when a member of this combinator has settled.
  final func memberSettled(_ reference: Unmanaged<AnyPromise>, _ index: Int) {
    // Constant since the waiter was linked, and no run, which has no waiter.
    let members = unsafeDowncast(node.pointee.upstreams.unsafelyUnwrapped, to: Members.self)
    let decided = members.settled(index, self)
    decided?.finish(self)
    // `decided` holds closures of the user.
    let words = Self.leaveSettleList()
    _ = consume decided
    reference.release()
    Self.enterSettleList(words)
  }
}

// MARK: - Bounded concurrency

// Bounded concurrency: many promises, of which only a few are pending at once. The run implements it.

extension Promise {
  /// Returns a promise for the values of the promises that `body` makes of `elements`, in their order.
  ///
  /// - Never more than `limit` promises are pending at once. An element is taken when there is room for its promise.
  /// - The first failure rejects the result. From then on no element is taken, and pending promises are left running.
  /// - Cancelling the result cancels the pending promises.
  /// - A `limit` below one rejects with ``CoroutineError/invalidCount``.
  /// - `body` is first called at once, on the caller. Later calls run in a coroutine on `queue`; without a queue, on
  ///   that of the calling coroutine or handler. One call runs at a time.
  /// - A cycle of promises that leads through the elements is not found: a promise of an element that waits for the
  ///   result waits for ever. A dump shows the coroutine.
  public static func all<Elements: Sequence>(
    of elements: sending Elements,
    concurrently limit: Int,
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Elements.Element) throws -> Promise
  ) -> Promise<[Success]> {
    runBounded(elements, limit, queue, true, LaunchSite(file: file, line: line), body) { try $0.get() }
  }

  /// Returns a promise for the outcomes of the promises that `body` makes of `elements`, and continues after failures.
  ///
  /// Apart from that, it behaves as `all(of:concurrently:on:file:line:_:)` does.
  public static func allSettled<Elements: Sequence>(
    of elements: sending Elements,
    concurrently limit: Int,
    on queue: DispatchQueue? = nil,
    file: StaticString = #fileID,
    line: UInt = #line,
    _ body: @escaping @Sendable (Elements.Element) throws -> Promise
  ) -> Promise<[Result<Success, any Error>]> {
    runBounded(elements, limit, queue, false, LaunchSite(file: file, line: line), body) { $0 }
  }

  private static func runBounded<Elements: Sequence, Output: Sendable>(
    _ elements: Elements,
    _ limit: Int,
    _ queue: DispatchQueue?,
    _ failsFast: Bool,
    _ launchSite: LaunchSite,
    _ body: @escaping @Sendable (Elements.Element) throws -> Promise,
    _ convert: @escaping (Result<Success, any Error>) throws -> Output
  ) -> Promise<[Output]> {
    let result = Promise<[Output]>(launchSite: launchSite)
    guard limit > 0 else {
      result.fail(CoroutineError.invalidCount(limit, of: "the limit of promises at once"))
      return result
    }
    var iterator = elements.makeIterator()
    let run = BoundedRun(
      limit,
      result,
      failsFast: failsFast,
      { try iterator.next().map(body) },
      convert,
      checkEnd: { try elements.throwFailure() }
    )
    run.take()
    if let outputs = run.finished {
      result.settle(.success(outputs))
    } else if result.isPending {
      run.start(result, on: queue, name: "Promise.all(of:concurrently:)") { try run.collect() }
    }
    return result
  }
}

// MARK: - The run

// Bounded concurrency: a run (Run.swift) with a step for each element, of which at most `limit` are pending at once.
//
// - One thread at a time takes elements and calls the body: first the caller of `all(of:concurrently:)`, then the
//   coroutine. It takes an element only while fewer than `limit` steps are pending, and none once the run is over.
// - A step has an index among the steps of the run. When it settles, its callback adds the index to `ended`, and wakes
//   the coroutine. The coroutine stores the output, and the index is free for the next element.
// - The callback of a step that fails rejects the result, if the first failure ends the run. So the call that rejects a
//   promise also rejects the result, and no element is taken from then on.

final class BoundedRun<Success: Sendable, Output: Sendable>: Run, @unchecked Sendable {
  // Sound because `ended` and `change` are under `lock`. The other variables belong to the thread that takes elements.
  /// Makes the promise of the next element, or returns nil if there is none.
  private let next: () throws -> Promise<Success>?
  private let convert: (Result<Success, any Error>) throws -> Output
  /// Throws the failure that has ended the elements, if there is one.
  private let checkEnd: () throws -> Void
  private let result: Promise<[Output]>
  private let limit: Int
  /// Whether the first failure ends the run.
  private let failsFast: Bool
  /// The step with each index, and the position of its output.
  @exclusivity(unchecked) private var taken: [(step: Promise<Success>, position: Int)?] = []
  @exclusivity(unchecked) private var free: [Int] = []
  @exclusivity(unchecked) private var outputs: [Output?] = []
  @exclusivity(unchecked) private var isExhausted = false
  /// The indices of steps that have settled, in this order.
  @exclusivity(unchecked) private var ended: [Int] = []
  /// What the coroutine waits for.
  @exclusivity(unchecked) private var change: Promise<Void>?

  init(
    _ limit: Int,
    _ result: Promise<[Output]>,
    failsFast: Bool,
    _ next: @escaping () throws -> Promise<Success>?,
    _ convert: @escaping (Result<Success, any Error>) throws -> Output,
    checkEnd: @escaping () throws -> Void
  ) {
    self.checkEnd = checkEnd
    (self.limit, self.result, self.next, self.convert, self.failsFast) = (limit, result, next, convert, failsFast)
    super.init(result)
  }

  /// The outputs, if there is neither a pending step nor another element.
  var finished: [Output]? {
    isExhausted && free.count == taken.count ? outputs.map { $0.unsafelyUnwrapped } : nil
  }

  /// Takes elements while there is room for their promises.
  func take() {
    while !isExhausted, taken.count - free.count < limit, mayGoOn(result) {
      let made: Promise<Success>
      do {
        guard let promise = try next() else {
          isExhausted = true
          do { try checkEnd() } catch { result.fail(error) }
          return
        }
        made = promise
      } catch {
        made = .failure(error)
      }
      let index = free.popLast() ?? taken.count
      if index == taken.count { taken.append(nil) }
      let step = step(of: made, at: index)
      taken[index] = (step, outputs.count)
      outputs.append(nil)
      // Sound because the step calls it while the step is in use.
      let callback = ClosureCallback { [self, unowned(unsafe) step] in hasEnded(step, index) }
      if !step.link(callback) { hasEnded(step, index) }
    }
  }

  private func hasEnded(_ step: Promise<Success>, _ index: Int) {
    if failsFast, let error = step.error { result.fail(error) }
    let change = lock.withLock {
      ended.append(index)
      return self.change.take()
    }
    change?.fulfill()
  }

  /// Runs to the end, in the coroutine.
  func collect() throws -> [Output] {
    while true {
      for index in try nextEnded() {
        let (step, position) = taken[index].take().unsafelyUnwrapped
        // It does not suspend, but for other coroutines that are ready.
        let outcome = Result { try co_await(step) }
        try co_checkCancelled()
        outputs[position] = try convert(outcome)
        free.append(index)
        take()
        if !mayGoOn(result) { throw CancellationError() }
        if let finished { return finished }
      }
    }
  }

  /// Suspends until a step has settled, and returns the indices of those that have.
  private func nextEnded() throws -> [Int] {
    while true {
      let change = Promise<Void>()
      let ended = lock.withLock {
        let ended = self.ended
        self.ended = []
        if ended.isEmpty { self.change = change }
        return ended
      }
      if !ended.isEmpty { return ended }
      try co_await(change)
    }
  }
}
