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
    let (keys, members) = (Array(promises.keys), Array(promises.values))
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
