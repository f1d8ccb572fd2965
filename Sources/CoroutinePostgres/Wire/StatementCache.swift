#if Postgres
import Glibc

/// The statements that one connection has prepared, by their text and the types of their parameters.
///
/// No name is used twice, so a statement whose preparation was cancelled half-way leaves no name behind that is taken.
///
/// Invariants
///  1. `entries` has each prepared statement once.
///  2. An entry of `recent` is in `entries`, or `isRemoved`. So what is found there, and is not removed, is prepared.
struct StatementCache {
  struct Key: Hashable {
    var text: String
    var types: [UInt32]

    init(_ statement: SQL) {
      text = statement.text
      types = statement.values.map(\.type)
    }

    static func == (a: Key, b: Key) -> Bool { a.types == b.types && hasSameBytes(a.text, b.text) }
  }
  private final class Entry {
    let key: Key
    let name: String
    var lastUse: Int
    var isRemoved = false

    init(_ key: Key, name: String, lastUse: Int) { (self.key, self.name, self.lastUse) = (key, name, lastUse) }

    func isOf(_ statement: SQL) -> Bool {
      guard !isRemoved, key.types.count == statement.values.count, hasSameBytes(key.text, statement.text)
      else { return false }
      for index in key.types.indices where key.types[index] != statement.values[index].type { return false }
      return true
    }
  }

  /// 0: nothing is prepared by name.
  let limit: Int
  private var entries: [Key: Entry] = [:]
  /// Statements at an index that their lengths give: a look there hashes no text, and makes no list of types.
  private var recent: [Entry?]
  private var clock = 0
  private var named = 0

  init(limit: Int) {
    self.limit = max(0, limit)
    recent = Array(repeating: nil, count: limit > 0 ? 64 : 0)
  }

  var count: Int { entries.count }

  /// The name of a statement, which counts as used now.
  mutating func name(of statement: SQL) -> String? {
    guard limit > 0 else { return nil }
    clock += 1
    let index = Self.index(of: statement)
    if let entry = recent[index], entry.isOf(statement) {
      entry.lastUse = clock
      return entry.name
    }
    guard let entry = entries[Key(statement)] else { return nil }
    entry.lastUse = clock
    recent[index] = entry
    return entry.name
  }

  private static func index(of statement: SQL) -> Int {
    (statement.text.utf8.count &* 5 &+ statement.values.count) & 63
  }

  mutating func newName() -> String {
    named += 1
    return "co\(named)"
  }

  mutating func insert(_ key: Key, name: String) {
    remove(key)
    entries[key] = Entry(key, name: name, lastUse: clock)
  }

  @discardableResult
  mutating func remove(_ key: Key) -> String? {
    guard let entry = entries.removeValue(forKey: key) else { return nil }
    entry.isRemoved = true
    return entry.name
  }

  /// Removes the statement that was not used for the longest time, if there is no room for another one.
  ///
  /// Looks at all of them: that is much less than the two round trips that follow.
  mutating func removeOldestIfFull() -> String? {
    guard entries.count >= limit, let oldest = entries.min(by: { $0.value.lastUse < $1.value.lastUse }) else {
      return nil
    }
    return remove(oldest.key)
  }

  mutating func removeAll() {
    entries.removeAll(keepingCapacity: true)
    recent = Array(repeating: nil, count: recent.count)
  }
}

/// Whether two texts are the same for a server.
///
/// For Swift, letters that are composed in two ways are equal.
private func hasSameBytes(_ a: String, _ b: String) -> Bool {
  guard a.utf8.count == b.utf8.count else { return false }
  let isSame: Bool?? = a.utf8.withContiguousStorageIfAvailable { a in
    b.utf8.withContiguousStorageIfAvailable { b in
      guard let first = a.baseAddress, let second = b.baseAddress else { return true }
      return memcmp(first, second, a.count) == 0
    }
  }
  return (isSame ?? nil) ?? a.utf8.elementsEqual(b.utf8)
}
#endif
