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
    /// The text in UTF-8.
    let utf8: [UInt8]
    let types: [UInt32]

    init(_ statement: SQL) {
      utf8 = statement.utf8
      types = statement.values.map(\.type)
    }

    var text: String { String(decoding: utf8, as: UTF8.self) }
  }
  private final class Entry {
    let key: Key
    let name: String
    /// The name as libpq takes it.
    let bytes: [CChar]
    var lastUse: Int
    var isRemoved = false

    init(_ key: Key, name: String, lastUse: Int) {
      (self.key, self.name, self.lastUse) = (key, name, lastUse)
      bytes = Array(name.utf8CString)
    }

    func isOf(_ statement: SQL) -> Bool {
      guard !isRemoved, key.types.count == statement.values.count, hasSameBytes(key.utf8, statement.utf8)
      else { return false }
      for index in key.types.indices where key.types[index] != statement.values[index].type { return false }
      return true
    }
  }

  /// 0: nothing is prepared by name.
  let limit: Int
  private var entries: [Key: Entry] = [:]
  /// Statements at an index that their texts give: a look there makes no list of types, and no safe hash.
  private var recent: [Entry?]
  /// The name of the question for a transaction's number (Wire+Begin.swift), if it is prepared.
  var question: [CChar]?
  /// Names that the server still has, and that are not used again: they are removed there before the next preparation.
  var unused: [String] = []
  private var clock = 0
  private var named = 0

  init(limit: Int) {
    self.limit = max(0, limit)
    recent = Array(repeating: nil, count: limit > 0 ? 64 : 0)
  }

  var count: Int { entries.count }

  /// The name of a statement, which counts as used now.
  mutating func name(of statement: SQL) -> [CChar]? {
    guard limit > 0 else { return nil }
    clock += 1
    let index = Self.index(of: statement)
    if let entry = recent[index], entry.isOf(statement) {
      entry.lastUse = clock
      return entry.bytes
    }
    guard let entry = entries[Key(statement)] else { return nil }
    entry.lastUse = clock
    recent[index] = entry
    return entry.bytes
  }

  /// Of the text's words of eight bytes: the rest, and the types, seldom tell two statements apart.
  private static func index(of statement: SQL) -> Int {
    var hash = UInt64(truncatingIfNeeded: statement.utf8.count)
    statement.utf8.withUnsafeBytes { text in
      for offset in stride(from: 0, to: text.count & ~7, by: 8) {
        hash = (hash ^ text.loadUnaligned(fromByteOffset: offset, as: UInt64.self)) &* 0x9E37_79B9_7F4A_7C15
      }
    }
    return Int(truncatingIfNeeded: hash >> 58)
  }

  mutating func newName() -> String {
    named += 1
    return "co\(named)"
  }

  /// Adds a statement, and returns its name as libpq takes it.
  @discardableResult
  mutating func insert(_ key: Key, name: String) -> [CChar] {
    remove(key)
    let entry = Entry(key, name: name, lastUse: clock)
    entries[key] = entry
    return entry.bytes
  }

  @discardableResult
  mutating func remove(_ key: Key) -> String? {
    guard let entry = entries.removeValue(forKey: key) else { return nil }
    entry.isRemoved = true
    return entry.name
  }

  /// Removes a statement if this is its name still.
  mutating func remove(_ key: Key, name: [CChar]) -> String? { entries[key]?.bytes == name ? remove(key) : nil }

  /// Removes the statement that was not used for the longest time, if there is no room for another one: it is `unused`
  /// then.
  ///
  /// Looks at all of them: that is much less than the two round trips that follow.
  mutating func removeOldestIfFull() {
    guard entries.count >= limit, let oldest = entries.min(by: { $0.value.lastUse < $1.value.lastUse }),
      let name = remove(oldest.key)
    else { return }
    unused.append(name)
  }

  /// Forgets all: the server has none any more.
  mutating func removeAll() {
    question = nil
    entries.removeAll(keepingCapacity: true)
    unused = []
    recent = Array(repeating: nil, count: recent.count)
  }
}

/// Whether two texts are the same.
private func hasSameBytes(_ a: [UInt8], _ b: [UInt8]) -> Bool {
  if a.count != b.count { return false }
  return a.withUnsafeBytes { a in
    b.withUnsafeBytes { b in
      guard let first = a.baseAddress, let second = b.baseAddress else { return true }
      return memcmp(first, second, a.count) == 0
    }
  }
}

// MARK: - Parameters

/// Calls `body` with the parameters of a statement as libpq takes them, all in the binary format.
///
/// The lists are on the stack, if they are short: arrays would cost more than the rest of a small statement. The values
/// stay where they are. The closures get elements alone: for one that has the statement, references to its arrays are
/// counted.
func withParameters<R>(
  of statement: SQL,
  _ body: (
    _ count: Int32, _ types: UnsafePointer<UInt32>, _ values: UnsafePointer<UnsafePointer<CChar>?>,
    _ lengths: UnsafePointer<Int32>, _ formats: UnsafePointer<Int32>
  ) -> R
) -> R {
  statement.values.withUnsafeBufferPointer { values in
    statement.bytes.withUnsafeBytes { bytes in
      // In this order, so that each list is aligned: addresses, types, lengths, formats.
      let count = values.count
      return withUnsafeTemporaryAllocation(byteCount: max(1, count) * (8 + 3 * 4), alignment: 8) { lists in
        let start = lists.baseAddress!
        let addresses = start.assumingMemoryBound(to: UnsafePointer<CChar>?.self)
        let types = (start + count * 8).assumingMemoryBound(to: UInt32.self)
        let lengths = (start + count * 12).assumingMemoryBound(to: Int32.self)
        let formats = lengths + count
        for (index, value) in values.enumerated() {
          // An empty value has an address as well: none would be a null.
          let address = (bytes.baseAddress ?? UnsafeRawPointer(start)) + value.start
          (addresses + index).initialize(to: value.count < 0 ? nil : address.assumingMemoryBound(to: CChar.self))
          (types + index).initialize(to: value.type)
          (lengths + index).initialize(to: Int32(truncatingIfNeeded: max(0, value.count)))
          (formats + index).initialize(to: 1)
        }
        return body(Int32(truncatingIfNeeded: count), types, addresses, lengths, formats)
      }
    }
  }
}

extension SQL {
  /// Throws why a value cannot be sent.
  func checkValues() throws {
    if values.count > UInt16.max {
      throw PostgresError(.decoding, "a statement has at most 65535 parameters, and this one has \(values.count)")
    }
    for value in values {
      if value.type == PostgresType.interval { try IntervalFormat.check(value.count) }
      if value.type == PostgresType.jsonb { try JSONFormat.check(bytes(of: value)) }
      if value.count > Int32.max {
        let rule = "a value has at most 2147483647 bytes, and one of this statement has \(value.count)"
        throw PostgresError(.decoding, rule)
      }
    }
  }
}
#endif
