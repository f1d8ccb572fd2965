import Coroutine
import Glibc

/// A key of a store.
///
/// A look-up borrows the bytes of the command, so it allocates nothing. A store has a copy of each key that it holds.
struct Key: Hashable {
  let bytes: Bytes

  /// Copies the bytes; the store deallocates the copy when the key leaves it.
  var copy: Key {
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: bytes.count, alignment: 1)
    memory.copyMemory(from: bytes)
    return Key(bytes: Bytes(memory))
  }

  static func == (one: Key, other: Key) -> Bool {
    guard one.bytes.count == other.bytes.count else { return false }
    guard let first = one.bytes.baseAddress, let second = other.bytes.baseAddress else { return true }
    return memcmp(first, second, one.bytes.count) == 0
  }

  func hash(into hasher: inout Hasher) { hasher.combine(bytes: bytes) }
}

enum Value {
  case text([UInt8])
  case list(List)
}

/// Keys and their values, and the clients that wait for lists.
///
/// Invariants
///  1. The store owns the memory of the keys in `values`.
///  2. A list in `values` is not empty, and while clients wait for a key it has no list.
final class Store: @unchecked Sendable {
  // Sound because its owner (Owner.swift) lets one thread use it at a time.
  private var values: [Key: Value] = [:]
  private var waiting: [[UInt8]: [WaitingClient]] = [:]

  deinit { removeAll() }

  var count: Int { values.count }

  subscript(key: Bytes) -> Value? { values[Key(bytes: key)] }

  func set(_ key: Bytes, _ value: Value) {
    if let index = values.index(forKey: Key(bytes: key)) {
      values.values[index] = value
    } else {
      values[Key(bytes: key).copy] = value
    }
  }

  /// Removes a key; returns whether it was there.
  func remove(_ key: Bytes) -> Bool {
    guard let index = values.index(forKey: Key(bytes: key)) else { return false }
    values.remove(at: index).key.bytes.deallocate()
    return true
  }

  func removeAll() {
    for key in values.keys { key.bytes.deallocate() }
    values = [:]
  }

  /// The text of a key, nil if there is none; throws if the key has another value.
  func text(_ key: Bytes) throws(Refusal) -> [UInt8]? {
    switch self[key] {
    case .text(let text): return text
    case .list: throw .wrongType
    case nil: return nil
    }
  }

  // MARK: Lists

  /// The list of a key, nil if there is none; throws if the key has another value.
  func list(_ key: Bytes) throws(Refusal) -> List? {
    switch self[key] {
    case .list(let list): return list
    case .text: throw .wrongType
    case nil: return nil
    }
  }

  /// Adds items at an end of a list, one after the other, and returns its length; then serves those who wait for it.
  func push(_ key: Bytes, _ items: some Sequence<Bytes>, _ end: List.End) throws(Refusal) -> Int {
    let known = try list(key)
    let list = known ?? List()
    for item in items { list.push([UInt8](item), end) }
    if known == nil { set(key, .list(list)) }
    let count = list.count
    if !waiting.isEmpty { serve([UInt8](key), list) }
    return count
  }

  /// Removes and returns the item at an end of a list.
  func pop(_ key: Bytes, _ end: List.End) throws(Refusal) -> [UInt8]? {
    guard let list = try list(key) else { return nil }
    let item = list.pop(end)
    if list.count == 0 { _ = remove(key) }
    return item
  }

  /// Puts an item back that a client could not take.
  func giveBack(_ item: Popped) {
    item.key.withUnsafeBytes { key in
      item.value.withUnsafeBytes { _ = try? push(key, CollectionOfOne($0), item.end) }
    }
  }

  // MARK: Clients that wait

  func addWaiting(_ client: WaitingClient, for key: Bytes) { waiting[[UInt8](key), default: []].append(client) }

  func removeWaiting(_ client: WaitingClient, for key: Bytes) {
    let key = [UInt8](key)
    waiting[key]?.removeAll { $0 === client }
    if waiting[key]?.isEmpty == true { waiting[key] = nil }
  }

  /// Gives items to the clients that wait for a key, the longest first.
  private func serve(_ key: [UInt8], _ list: List) {
    guard var clients = waiting[key]?[...] else { return }
    while let client = clients.first, let value = list.pop(client.end) {
      let item = Popped(key: key, value: value, end: client.end)
      // A client that has an item of another list, or waits no longer, takes none.
      if client.items.trySend(item) != .sent { list.push(value, client.end) }
      clients.removeFirst()
    }
    waiting[key] = clients.isEmpty ? nil : Array(clients)
    if list.count == 0 { _ = key.withUnsafeBytes { remove($0) } }
  }
}
