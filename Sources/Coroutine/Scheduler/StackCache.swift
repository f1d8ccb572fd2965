public import CCoroutine

/// The idle stacks of a scheduler, most recently used first: their memory is hot, and starting a job on one is a
/// switch.
@usableFromInline
struct StackCache {
  @usableFromInline typealias Stack = UnsafeMutablePointer<cco_context>
  /// By size class; the last one stands for sizes above the largest, which never occur.
  @usableFromInline var first = InlineArray<8, Stack?>(repeating: nil)
  @usableFromInline var count = InlineArray<8, Int32>(repeating: 0)

  /// More than the usual burst of parks and finishes, but little enough memory.
  static var limit: Int32 { 64 }

  init() {}

  @inlinable @inline(__always)
  mutating func pop(_ stackClass: UInt8) -> Stack? {
    guard let stack = first[Int(stackClass)] else { return nil }
    first[Int(stackClass)] = stack.pointee.value?.assumingMemoryBound(to: cco_context.self)
    count[Int(stackClass)] &-= 1
    return stack
  }

  /// Adds a stack; returns false if the cache is full, and the caller must free the stack.
  mutating func push(_ stack: Stack) -> Bool {
    let stackClass = Int(stack.pointee.size_class)
    guard count[stackClass] < Self.limit else { return false }
    stack.pointee.value = UnsafeMutableRawPointer(first[stackClass])
    first[stackClass] = stack
    count[stackClass] &+= 1
    return true
  }

  /// Frees every stack.
  mutating func freeAll() {
    for stackClass in 0..<7 {
      while let stack = pop(UInt8(stackClass)) { StackRunner.free(stack) }
    }
  }
}
