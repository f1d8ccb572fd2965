public import Synchronization

// What the shipped files of this target get instead of Synchronization.Atomic: a declaration of the module hides an
// imported one. Each operation lets the explorer switch first, and then takes effect at once.

/// A word that virtual threads share.
@usableFromInline
struct Atomic<Value>: ~Copyable, @unchecked Sendable {
  // Sound because virtual threads run on one thread.
  private let cell: UnsafeMutablePointer<Value>
  let location = newLocation()

  @usableFromInline
  init(_ value: Value) {
    cell = .allocate(capacity: 1)
    cell.initialize(to: value)
  }

  deinit {
    cell.deinitialize(count: 1)
    cell.deallocate()
  }

  /// The address of one of its bytes, for `waitUntilZero`.
  func byte(_ index: Int) -> UnsafePointer<UInt8> {
    UnsafeRawPointer(cell).advanced(by: index).assumingMemoryBound(to: UInt8.self)
  }

  /// The value, for checks: no operation of the algorithm.
  var now: Value { cell.pointee }

  @usableFromInline
  func load(ordering: AtomicLoadOrdering, function: StaticString = #function) -> Value {
    Explorer.current?.step(.load, function, location)
    return Explorer.current?.fault?.answers(in: function) ?? cell.pointee
  }

  @usableFromInline
  func store(_ value: Value, ordering: AtomicStoreOrdering, function: StaticString = #function) {
    Explorer.current?.step(.store, function, location)
    if Explorer.current?.fault?.skips(function) != true { cell.pointee = value }
  }

  @usableFromInline
  func exchange(_ value: Value, ordering: AtomicUpdateOrdering, function: StaticString = #function) -> Value {
    change(.exchange, function) { _ in value }
  }

  @usableFromInline
  func compareExchange(
    expected: Value,
    desired: Value,
    ordering: AtomicUpdateOrdering,
    function: StaticString = #function
  ) -> (exchanged: Bool, original: Value) {
    compareExchange(expected, desired, function)
  }

  @usableFromInline
  func compareExchange(
    expected: Value,
    desired: Value,
    successOrdering: AtomicUpdateOrdering,
    failureOrdering: AtomicLoadOrdering,
    function: StaticString = #function
  ) -> (exchanged: Bool, original: Value) {
    compareExchange(expected, desired, function)
  }

  @usableFromInline
  func weakCompareExchange(
    expected: Value,
    desired: Value,
    successOrdering: AtomicUpdateOrdering,
    failureOrdering: AtomicLoadOrdering,
    function: StaticString = #function
  ) -> (exchanged: Bool, original: Value) {
    compareExchange(expected, desired, function)
  }

  private func compareExchange(
    _ expected: Value,
    _ desired: Value,
    _ function: StaticString
  ) -> (exchanged: Bool, original: Value) {
    Explorer.current?.step(.compareExchange, function, location)
    let original = cell.pointee
    if Explorer.current?.fault?.skips(function) == true { return (true, original) }
    let isEqual = Explorer.current?.fault?.forcesEquality(original, expected, in: function) ?? false
    guard isEqual || Self.isSame(original, expected) else { return (false, original) }
    if Explorer.current?.fault?.tears(function) == true { Explorer.current?.step(.tornStore, function, location) }
    cell.pointee = desired
    return (true, original)
  }

  /// A read, a change and a write, which nothing can come between.
  private func change(_ kind: Operation, _ function: StaticString, _ changed: (Value) -> Value) -> Value {
    Explorer.current?.step(kind, function, location)
    let original = cell.pointee
    if Explorer.current?.fault?.skips(function) == true { return original }
    if Explorer.current?.fault?.tears(function) == true { Explorer.current?.step(.tornStore, function, location) }
    cell.pointee = changed(original)
    return original
  }

  private static func isSame(_ one: Value, _ other: Value) -> Bool { bits(of: one) == bits(of: other) }
}

/// The bits of a value that fits into a word, as all values of atomics do.
func bits<Value>(of value: Value) -> UInt {
  var bits: UInt = 0
  withUnsafeBytes(of: value) { value in
    withUnsafeMutableBytes(of: &bits) { $0.copyMemory(from: value) }
  }
  return bits
}

/// A number for something that virtual threads share.
func newLocation() -> Int { Explorer.current?.sharing.pointee.add() ?? 0 }

extension Atomic where Value: FixedWidthInteger {
  @usableFromInline @discardableResult
  func bitwiseOr(
    _ bits: Value,
    ordering: AtomicUpdateOrdering,
    function: StaticString = #function
  ) -> (oldValue: Value, newValue: Value) {
    let old = change(.bitwiseOr, function) { $0 | bits }
    return (old, old | bits)
  }

  @usableFromInline @discardableResult
  func bitwiseAnd(
    _ bits: Value,
    ordering: AtomicUpdateOrdering,
    function: StaticString = #function
  ) -> (oldValue: Value, newValue: Value) {
    let old = change(.bitwiseAnd, function) { $0 & bits }
    return (old, old & bits)
  }

  @usableFromInline @discardableResult
  func wrappingAdd(
    _ number: Value,
    ordering: AtomicUpdateOrdering,
    function: StaticString = #function
  ) -> (oldValue: Value, newValue: Value) {
    let old = change(.add, function) { $0 &+ number }
    return (old, old &+ number)
  }

  @usableFromInline @discardableResult
  func wrappingSubtract(
    _ number: Value,
    ordering: AtomicUpdateOrdering,
    function: StaticString = #function
  ) -> (oldValue: Value, newValue: Value) {
    let old = change(.subtract, function) { $0 &- number }
    return (old, old &- number)
  }
}
