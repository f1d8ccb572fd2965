public import Dispatch

// Bounded concurrency: many promises, of which only a few are pending at once. BoundedRun.swift implements it.

extension Promise {
  /// Returns a promise for the values of the promises that `body` makes of `elements`, in their order.
  ///
  /// - Never more than `limit` promises are pending at once. An element is taken when there is room for its promise.
  /// - The first failure rejects the result. From then on no element is taken, and pending promises are left running.
  /// - Cancelling the result cancels the pending promises.
  /// - A `limit` below one rejects with ``CoroutineError/invalidCount(_:)``.
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
      result.fail(CoroutineError.invalidCount(limit))
      return result
    }
    var iterator = elements.makeIterator()
    let run = BoundedRun(limit, result, failsFast: failsFast, { try iterator.next().map(body) }, convert)
    run.take()
    if let outputs = run.finished {
      result.settle(.success(outputs))
    } else if result.isPending {
      run.start(result, on: queue, name: "Promise.all(of:concurrently:)") { try run.collect() }
    }
    return result
  }
}
