#if Postgres
/// The statements that one connection has prepared, by their text and the types of their parameters.
///
/// No name is used twice, so a statement whose preparation was cancelled half-way leaves no name behind that is taken.
struct StatementCache {
  struct Key: Hashable {
    var text: String
    var types: [UInt32]
  }
  private struct Entry {
    var name: String
    var lastUse: Int
  }

  /// 0: nothing is prepared by name.
  let limit: Int
  private var entries: [Key: Entry] = [:]
  private var clock = 0
  private var named = 0

  init(limit: Int) { self.limit = max(0, limit) }

  var count: Int { entries.count }

  /// The name of a statement, which counts as used now.
  mutating func name(_ key: Key) -> String? {
    clock += 1
    // One search for both.
    guard let index = entries.index(forKey: key) else { return nil }
    entries.values[index].lastUse = clock
    return entries.values[index].name
  }

  mutating func newName() -> String {
    named += 1
    return "co\(named)"
  }

  mutating func insert(_ key: Key, name: String) { entries[key] = Entry(name: name, lastUse: clock) }

  @discardableResult
  mutating func remove(_ key: Key) -> String? { entries.removeValue(forKey: key)?.name }

  /// Removes the statement that was not used for the longest time, if there is no room for another one.
  ///
  /// Looks at all of them: that is much less than the two round trips that follow.
  mutating func removeOldestIfFull() -> String? {
    guard entries.count >= limit, let oldest = entries.min(by: { $0.value.lastUse < $1.value.lastUse }) else {
      return nil
    }
    return remove(oldest.key)
  }

  mutating func removeAll() { entries.removeAll(keepingCapacity: true) }
}
#endif
