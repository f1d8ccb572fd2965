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
    let all = Promise<(repeat each Value)>(launchSite: LaunchSite(file: file, line: line))
    var members: [AnyPromise] = []
    var readers: [(AnyPromise) -> any Sendable] = []
    repeat members.append(each promises)
    repeat readers.append(Self.reader((each Value).self))
    let collected = CollectedValues<any Sendable>(members.count)
    guard !members.isEmpty else {
      all.settle(.success((repeat Self.value((each Value).self, collected, nil))))
      return all
    }
    var failure: (any Error)?
    let read = readers
    all.wait(for: members, losers) { member, index, isLast in
      if member.hasFailed {
        failure = member.completion.pointee.failure
        return true
      }
      collected.put(read[index](member), index)
      return isLast
    } finish: { all in
      let all = unsafeDowncast(all, to: Promise<(repeat each Value)>.self)
      if let failure {
        all.fail(failure)
      } else {
        let cursor = Cursor()
        all.settle(.success((repeat Self.value((each Value).self, collected, cursor))))
      }
    }
    return all
  }

  private static func reader<Value: Sendable>(_ type: Value.Type) -> (AnyPromise) -> any Sendable {
    { $0.completion.value(as: type) }
  }

  private static func value<Value: Sendable>(
    _ type: Value.Type,
    _ collected: CollectedValues<any Sendable>,
    _ cursor: Cursor?
  ) -> Value {
    guard let value = collected.values[cursor?.next() ?? 0] as? Value else {
      preconditionFailure("The stored value of a member does not have the type of its promise.")
    }
    return value
  }
}

private final class Cursor {
  private var index = 0
  func next() -> Int {
    defer { index += 1 }
    return index
  }
}
