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
    collectAll(promises, losers, LaunchSite(file: file, line: line)) { $0 }
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
    let keys = Array(promises.keys)
    return collectAll(keys.map { promises[$0]! }, losers, LaunchSite(file: file, line: line)) {
      Dictionary(uniqueKeysWithValues: zip(keys, $0))
    }
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
    let keys = Array(promises.keys)
    return collectAll(keys.map { promises[$0]! }, losers, LaunchSite(file: file, line: line)) {
      Dictionary(uniqueKeysWithValues: zip(keys, $0))
    } failing: {
      PromiseMemberError(key: keys[$1], error: $0)
    }
  }

  @inlinable
  static func collectAll<Output: Sendable>(
    _ promises: [Promise],
    _ losers: Losers,
    _ launchSite: LaunchSite,
    _ make: @escaping ([Success]) -> Output,
    failing: @escaping (_ error: any Error, _ index: Int) -> any Error = { error, _ in error }
  ) -> Promise<Output> {
    let all = Promise<Output>(launchSite: launchSite)
    guard !promises.isEmpty else {
      all.settle(.success(make([])))
      return all
    }
    let collected = CollectedValues<Success>(promises.count)
    var failure: (error: any Error, index: Int)?
    all.wait(for: promises, losers) { member, index, isLast in
      if member.hasFailed {
        failure = (member.completion.pointee.failure.unsafelyUnwrapped, index)
        return true
      }
      collected.put(member.completion.value(as: Success.self), index)
      return isLast
    } finish: { all in
      let all = unsafeDowncast(all, to: Promise<Output>.self)
      if let failure {
        all.fail(failing(failure.error, failure.index))
      } else {
        all.settle(.success(make(collected.all)))
      }
    }
    return all
  }

  /// Returns a promise for the outcomes of all promises, in their order.
  ///
  /// It never rejects. For no promises, the value is `[]`.
  public static func allSettled(
    _ promises: [Promise],
    file: StaticString = #fileID,
    line: UInt = #line
  ) -> Promise<[Result<Success, any Error>]> {
    typealias Outcome = Result<Success, any Error>
    let all = Promise<[Outcome]>(launchSite: LaunchSite(file: file, line: line))
    guard !promises.isEmpty else {
      all.settle(.success([]))
      return all
    }
    let collected = CollectedValues<Outcome>(promises.count)
    all.wait(for: promises, .leftRunning) { member, index, isLast in
      collected.put(member.completion.settledOutcome(as: Success.self), index)
      return isLast
    } finish: { all in
      unsafeDowncast(all, to: Promise<[Outcome]>.self).settle(.success(collected.all))
    }
    return all
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
    let first = Promise(launchSite: launchSite)
    guard !promises.isEmpty else {
      first.fail(AggregateError())
      return first
    }
    let failures = CollectedValues<any Error>(promises.count)
    var winner: Result<Success, any Error>?
    first.wait(for: promises, losers) { member, index, isLast in
      if wins(member) {
        winner = member.completion.settledOutcome(as: Success.self)
        return true
      }
      failures.put(member.completion.pointee.failure.unsafelyUnwrapped, index)
      return isLast
    } finish: { first in
      let first = unsafeDowncast(first, to: Promise.self)
      first.settle(winner ?? .failure(AggregateError(errors: failures.all)))
    }
    return first
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
