import CCoroutine
import CCoroutineRuntime
import CDispatch
import Dispatch
import Testing

@testable import Coroutine

/// One test for each thing that the library takes for granted and no document promises.
///
/// docs/unsafe.md says what each is used for. When a test fails on a new toolchain, look there.
@Suite("What no document promises")
struct CanaryTests {
  // MARK: Layout

  private class Base {
    @exclusivity(unchecked) var first: UInt8 = 1
    @exclusivity(unchecked) var second: (UInt64, UInt32) = (2, 3)
  }

  private final class Derived<Value>: Base {
    @exclusivity(unchecked) var value: Value
    init(_ value: Value) { self.value = value }
  }

  @Test func `stored properties follow the two words of an object's header in their order, a superclass's first`() {
    func check(_ object: Derived<some Any>) {
      let start = UInt(bitPattern: Unmanaged.passUnretained(object).toOpaque())
      #expect(withUnsafeMutablePointer(to: &object.first) { UInt(bitPattern: $0) } == start + 16)
      #expect(withUnsafeMutablePointer(to: &object.second) { UInt(bitPattern: $0) } == start + 24)
      // The next word that is free: the second property's last four bytes are padding.
      let value = withUnsafeMutablePointer(to: &object.value) { UInt(bitPattern: $0) }
      #expect(value >= start + 36 && value <= start + 40)
      #expect(propertyAddress(in: object, at: 8, as: UInt64.self).pointee == 2)
    }
    check(Derived(1 as UInt64))
    check(Derived("text"))
    #expect(objectHeader == 16)
  }

  @Test func `an inout access to a stored property of a final class gives the property's address each time`() {
    let generator = co_sequence(of: Int.self) { try $0(1) }
    let first = generator.record
    _ = generator.next()
    #expect(generator.record == first)
    #expect(UnsafeMutableRawPointer(first) == Unmanaged.passUnretained(generator).toOpaque() + 16)
  }

  @Test func `a struct's first field lies at its beginning, and a last field without padding at its end`() {
    #expect(MemoryLayout<ValueWaiter>.offset(of: \.waiter) == 0)
    #expect(MemoryLayout<OneShot>.offset(of: \.waiter) == 0)
    #expect(MemoryLayout<SelectWaiter>.offset(of: \.valueWaiter) == 0)
    #expect(MemoryLayout<SelectSource>.offset(of: \.target) == 0)
    #expect(MemoryLayout<SelectCase<String>>.offset(of: \.source) == 0)
    let words = MemoryLayout<SelectWaiter>.size - MemoryLayout<SelectWords>.size
    #expect(MemoryLayout<SelectWaiter>.offset(of: \.words) == words)
  }

  @Test func `an InlineArray is its elements side by side`() {
    #expect(MemoryLayout<InlineArray<3, UInt>>.size == 24)
    #expect(MemoryLayout<InlineArray<3, UInt>>.alignment == 8)
    #expect(MemoryLayout<InlineArray<5, UInt>>.stride == 40)
  }

  @Test func `the cases of a select lie side by side as in an array`() {
    let pair = SelectCase<Int>.onTimeout(.seconds(1)) { 1 }.onTimeout(.seconds(2)) { 2 }.otherwise { 3 }
    #expect(type(of: pair)._isFlat)
    #expect(MemoryLayout.size(ofValue: pair) == 3 * MemoryLayout<SelectCase<Int>>.stride)
    let table = UnsafeMutablePointer<SelectCase<Int>>.allocate(capacity: 3)
    defer { table.deallocate() }
    #expect(pair._putCases(at: table) == table + 3)
    defer { table.deinitialize(count: 3) }
    let isSame = withUnsafeBytes(of: pair) { pair in
      pair.elementsEqual(UnsafeRawBufferPointer(start: table, count: pair.count))
    }
    #expect(isSame)
  }

  @Test func `an optional reference is read as an unmanaged one`() {
    let object: AnyObject? = Base()
    let read = withUnsafeBytes(of: object) { $0.load(as: Unmanaged<Base>.self) }
    #expect(read.takeUnretainedValue() === object)
    #expect(MemoryLayout<Unmanaged<Base>?>.size == 8)
  }

  // MARK: Functions and errors

  private struct Large: Equatable {
    var words = (0..<4).map(UInt.init)
    var pair: (UInt, Double) { (words[0], 0.5) }
    var text = "kept"
    var more: [UInt64] = [7, 8, 9]
  }

  @Test func `a function value in a struct is two words, and has its own type back when it is called`() throws {
    #expect(MemoryLayout<SelectBody>.size == 16)
    #expect(MemoryLayout<SelectBody.Plain<Large>>.size == 16)
    #expect(MemoryLayout<SelectBody.Taking<Int, Void>>.size == 16)
    let large = Large()
    #expect(try SelectBody(plain: { large }).asPlain(Large.self)() == large)
    #expect(try SelectBody(taking: { (input: Large) in input.text }).asTaking(Large.self, String.self)(large) == "kept")
    #expect(try SelectBody(taking: { (input: Double) in input / 2 }).asTaking(Double.self, Double.self)(3) == 1.5)
    let failing = SelectBody(taking: { (_: Int) -> Large in throw CancellationError() })
    #expect(throws: CancellationError.self) { try failing.asTaking(Int.self, Large.self)(1) }
  }

  @Test func `a generator's body is called with a yielder of another type`() {
    #expect(MemoryLayout<GeneratorBody>.size == MemoryLayout<TypedGeneratorBody<Large, String>>.size)
    #expect(MemoryLayout<Yielder<Large, String>>.size == MemoryLayout<Yielder<Void, Void>>.size)
    let large = Large()
    let generator = Generator<Large, String, Double> { yielder in
      try yielder(large)
      return 2.5
    }
    #expect(generator.next() == large)
    #expect(try! generator.step() == .returned(2.5))
  }

  @Test func `an error is one word, which names its box`() {
    struct Plain: Error {}
    #expect(MemoryLayout<any Error>.size == 8)
    let (one, other): (any Error, any Error) = (Plain(), Plain())
    let copy = one
    #expect(addressOfBox(one) == addressOfBox(copy))
    #expect(addressOfBox(one) != addressOfBox(other))
    #expect(ClosingError.isSame(as: ClosingError.value))
  }

  @Test func `_isPOD tells whether a value may be copied bit by bit and forgotten`() {
    #expect(_isPOD((Int, Double).self) && _isPOD(UInt8?.self))
    #expect(!_isPOD(String.self) && !_isPOD(AnyObject.self) && !_isPOD([Int].self))
  }

  @Test func `a literal's characters lie in memory`() {
    func check(_ literal: StaticString) { #expect(literal.hasPointerRepresentation) }
    check("")
    check("a")
    check(#fileID)
  }

  // MARK: The runtime

  // Sound because one test uses them, on one thread.
  nonisolated(unsafe) private static let unchecked = Derived(0)
  nonisolated(unsafe) private static let checked = Checked()

  private final class Checked {
    var value = 0
  }

  /// What the thread's list of dynamic accesses begins with.
  @inline(never)
  private static func firstAccess() -> UInt {
    UnsafeRawPointer(cco_thread_pointer()).load(fromByteOffset: cco_facts.exchanged_offset.1, as: UInt.self)
  }

  @inline(never)
  private static func change(_ value: inout some Any, _ look: () -> UInt) -> UInt { look() }

  @Test func `an access to an unchecked property is not in the thread's list, one to another property is`() {
    cco_start()
    let before = Self.firstAccess()
    #expect(Self.change(&Self.unchecked.value, Self.firstAccess) == before)
    #expect(Self.change(&Self.checked.value, Self.firstAccess) != before)
    #expect(Self.firstAccess() == before)
  }

  private final class Ending {
    let report: (Bool) -> Void
    init(_ report: @escaping (Bool) -> Void) { self.report = report }
    deinit { report(cco_try_retain(Unmanaged.passUnretained(self).toOpaque())) }
  }

  @Test func `an object in its deinit is not retained, one before it is`() {
    var retained: Bool?
    let object = Ending { retained = $0 }
    let reference = Unmanaged.passUnretained(object)
    #expect(cco_try_retain(reference.toOpaque()))
    reference.release()
    withExtendedLifetime(object) {}
    _ = consume object
    #expect(retained == false)
  }

  private final class Lasting {
    let address: UnsafeMutableRawPointer
    init(_ address: UnsafeMutableRawPointer) { self.address = address }
    deinit { address.storeBytes(of: 1, as: Int.self) }
  }

  @Test func `a reference to memory outlives the object, and is no strong one`() {
    var ended = 0
    withUnsafeMutableBytes(of: &ended) { ended in
      let address = ended.baseAddress.unsafelyUnwrapped
      let object = Lasting(address)
      let reference = Unmanaged.passUnretained(object).toOpaque()
      cco_retain_memory(reference)
      #expect(cco_has_one_reference(reference))
      let second = Unmanaged.passRetained(object)
      #expect(!cco_has_one_reference(reference))
      second.release()
      #expect(cco_has_one_reference(reference))
      withExtendedLifetime(object) {}
      _ = consume object
      #expect(address.load(as: Int.self) == 1)
      // The first property, behind the header.
      #expect(reference.load(fromByteOffset: 16, as: UnsafeMutableRawPointer.self) == address)
      #expect(!cco_try_retain(reference) && !cco_has_one_reference(reference))
      cco_release_memory(reference)
    }
  }

  @Test func `a retain that is not atomic counts like any other`() {
    var object = Base()
    let reference = Unmanaged.passUnretained(object)
    #expect(isKnownUniquelyReferenced(&object))
    cco_retain_unshared(reference.toOpaque())
    #expect(!isKnownUniquelyReferenced(&object))
    reference.release()
    #expect(isKnownUniquelyReferenced(&object))
  }

  // MARK: Dispatch

  @Test func `a queue's wrapper holds the C queue, which runs on the same queue`() async {
    let queue = DispatchQueue(label: "canary")
    let wrapped = Mirror(reflecting: queue).children.first { $0.label == "__wrapped" }?.value as? OpaquePointer
    guard let wrapped else {
      Issue.record("the wrapper's layout has changed: each drain costs a block")
      return
    }
    let key = DispatchSpecificKey<Int>()
    queue.setSpecific(key: key, value: 42)
    final class Found: @unchecked Sendable {
      // Sound because the continuation is set before the block is submitted, and the rest does not change.
      /// Behind a lock: ThreadSanitizer does not see that a continuation was resumed before it was awaited.
      let value = Locked<Int?>(nil)
      var continuation: CheckedContinuation<Void, Never>?
      let key: DispatchSpecificKey<Int>
      init(_ key: DispatchSpecificKey<Int>) { self.key = key }
    }
    let found = Found(key)
    await withCheckedContinuation { continuation in
      found.continuation = continuation
      dispatch_async_f(wrapped, Unmanaged.passRetained(found).toOpaque()) {
        let found = Unmanaged<Found>.fromOpaque($0!).takeRetainedValue()
        let value = DispatchQueue.getSpecific(key: found.key)
        found.value.withLock { $0 = value }
        found.continuation!.resume()
      }
    }
    #expect(found.value.current == 42)
  }
}
