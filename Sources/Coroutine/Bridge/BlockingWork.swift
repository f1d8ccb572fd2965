import Glibc

/// A body in the pool.
///
///   CREATED --submit--> QUEUED --take--> TAKEN        the thread runs it
///                          |-----fail--> TAKEN        no thread could be started; the thread that tried fails it
///                          +--withdraw-> WITHDRAWN    its coroutine was cancelled, and drops it
///
/// Ownership: the pool's lock covers `next`, `previous` and `isQueued`. The thread that made the last transition owns
/// the rest. Transitions are made under that lock. So a body is run, failed or dropped, once.
class BlockingWork: @unchecked Sendable {
  // Sound because of the ownership above. `previous` needs no reference because the pool holds the work before it in
  // the queue.
  @exclusivity(unchecked) final var next: BlockingWork?
  @exclusivity(unchecked) final unowned(unsafe) var previous: BlockingWork?
  @exclusivity(unchecked) final var isQueued = false

  init() {}

  /// Runs the body and delivers its outcome.
  ///
  /// Called on a thread of the pool.
  func run() {}
  /// Delivers `error` without running the body.
  func fail(_ error: any Error) {}
}

/// A body and the coroutine that waits for its outcome.
///
/// A value is delivered once. `SuspendCell.resume` decides (OneShot.swift). If it returns `pending`, the coroutine
/// returns the value, whatever happens to it later. If it returns `detached`, the coroutine has thrown, or will throw,
/// and never reads the cell again: the value goes to `onUndelivered`. A third answer is not possible, because only
/// `run` and `fail` resume the cell, and of these one is called, once (BlockingWork). A body that is withdrawn has no
/// value.
final class BlockingBody<Output: Sendable>: BlockingWork, @unchecked Sendable {
  // Sound because of BlockingWork's ownership.
  private let cell: SuspendCell<Output>
  @exclusivity(unchecked) private var locals: LocalBinding?
  @exclusivity(unchecked) private var body: (() throws -> Output)?
  @exclusivity(unchecked) private var onUndelivered: (@Sendable (Output) -> Void)?

  init(
    _ cell: SuspendCell<Output>,
    locals: LocalBinding?,
    onUndelivered: (@Sendable (Output) -> Void)?,
    _ body: sending @escaping () throws -> Output
  ) {
    self.cell = cell
    self.locals = locals
    self.onUndelivered = onUndelivered
    self.body = body
    super.init()
  }

  override func run() {
    // Computed first: while the body runs, this frame, which the body may drop, holds no reference.
    let result = outcome()
    // Foreign code may have asked the thread to end. Not here: the write that wakes a worker would end it instead.
    var cancelState: Int32 = 0
    pthread_setcancelstate(Int32(PTHREAD_CANCEL_DISABLE), &cancelState)
    let state = cell.resume(result)
    pthread_setcancelstate(cancelState, nil)
    // Without a receiver, a value without `onUndelivered` and an error are released here.
    if state == .detached, case .success(let value) = result { giveBack(value) }
    drop()
  }

  override func fail(_ error: any Error) {
    drop()
    _ = cell.resume(.failure(error))
  }

  /// Releases the body, and the objects that it holds, without running it.
  func drop() {
    body = nil
    locals = nil
    onUndelivered = nil
  }

  /// Runs the body.
  ///
  /// On return, the body and its captures have been released: the resumed coroutine finds none of them still held.
  private func outcome() -> Result<Output, any Error> {
    // Unmanaged, and no closure that captures `self`: if the body ends the thread, this frame releases nothing. The
    // only reference to the bindings is then the thread's.
    let bound = (onUndelivered == nil ? locals.take() : locals).map(Unmanaged.passRetained)
    let outer = Self.enter(bound)
    defer { Self.leave(bound, outer) }
    guard let body = body.take() else { return .failure(CoroutineError.abandoned) }
    return Result { try body() }
  }

  private func giveBack(_ value: Output) {
    guard let onUndelivered else { return }
    let bound = locals.take().map(Unmanaged.passRetained)
    let outer = Self.enter(bound)
    defer { Self.leave(bound, outer) }
    onUndelivered(value)
  }

  /// Gives the thread the bindings of the coroutine, and returns the former ones.
  private static func enter(_ bound: Unmanaged<LocalBinding>?) -> Unmanaged<LocalBinding>? {
    let outer = LocalBinding.exchange(bound)
    bound?._withUnsafeGuaranteedRef { $0.enterTaskLocals() }
    return outer
  }

  private static func leave(_ bound: Unmanaged<LocalBinding>?, _ outer: Unmanaged<LocalBinding>?) {
    bound?._withUnsafeGuaranteedRef { $0.leaveTaskLocals() }
    LocalBinding.exchange(outer)?.release()
  }
}

/// The bodies that wait for a thread, first in first out.
///
/// All operations take constant time, under the pool's lock.
struct BlockingQueue {
  private(set) var first: BlockingWork?
  private var last: BlockingWork?
  private(set) var count = 0

  mutating func append(_ work: BlockingWork) {
    work.isQueued = true
    work.previous = last
    if let last { last.next = work } else { first = work }
    last = work
    count += 1
  }

  mutating func popFirst() -> BlockingWork? {
    guard let work = first else { return nil }
    remove(work)
    return work
  }

  mutating func remove(_ work: BlockingWork) {
    work.isQueued = false
    let next = work.next.take()
    if let next { next.previous = work.previous } else { last = work.previous }
    if let previous = work.previous { previous.next = next } else { first = next }
    work.previous = nil
    count -= 1
  }
}
