public import Dispatch

// Many pieces of work, a few at a time: BoundedRun.swift does it.

extension Promise {
  /// The values of the promises that `body` makes of `elements`, in their order, never more than `limit` pending at once.
  ///
  /// An element is taken when there is room for its work. The first failure rejects; then no element is taken any more, and what is
  /// pending is left running. Cancelling the result cancels what is pending. A `limit` below one rejects with ``InvalidCount``.
  /// `body` is first called at once, on the caller, later on `queue`, one call at a time.
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

  /// As all, but tells how each of them ended, and goes on after failures.
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
      result.fail(InvalidCount(count: limit))
      return result
    }
    var iterator = elements.makeIterator()
    let start = { () throws -> Promise? in try iterator.next().map(body) }
    let runBounded = BoundedRun(limit, queueOfHandlers(queue), result, failsFast: failsFast, start, convert)
    runBounded.pull()
    return result
  }
}
