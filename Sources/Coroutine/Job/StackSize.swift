/// The stack size of a coroutine.
///
/// <!-- compiled: Tests/CoroutineTests/Snippets/GuideStateSnippets.swift -->
/// ```swift
/// let parser = co_launch(name: "parser", stack: .bytes(4 << 20)) { depth(10_000) }
/// ```
///
/// The size is reserved as address space; memory is committed page by page on first use.
public struct StackSize: Sendable, Hashable, CustomStringConvertible {
  @usableFromInline let byteCount: Int

  @inlinable
  init(byteCount: Int) { self.byteCount = byteCount }

  /// 512 KiB: enough for Foundation, regular expressions, TLS libraries and documents 200 levels deep.
  @inlinable public static var standard: StackSize { StackSize(byteCount: 512 << 10) }
  /// At least this number of bytes, rounded up to a size class: 16, 64, 256 or 512 KiB, 1, 4 or 16 MiB.
  ///
  /// Above the largest class the job fails with ``CoroutineError/stackTooLarge(_:)``.
  @inlinable public static func bytes(_ count: Int) -> StackSize { StackSize(byteCount: max(1, count)) }

  /// Four times what coroutines of the same launch site have used, and at least `least` bytes.
  ///
  /// The runtime measures the first coroutines that a launch site launches with this size, and few of the later ones,
  /// when they end; it counts whole pages. From the 16th one on, the stack is the smallest size class of four times the
  /// most that any of them has used. Until then it is at least ``standard``. What a site needs is remembered as long as
  /// the process runs, and never decreases: ``CoroutineRuntime/dump()`` and
  /// ``CoroutineRuntime/Snapshot/stackUses`` show it.
  ///
  /// A measurement is no promise: a coroutine that goes deeper than four times the deepest measured one overflows its
  /// stack, and the process ends with a line that names the launch site. `least` is what the deepest run that you know
  /// of needs. To measure a coroutine takes about three microseconds, which few launches pay.
  ///
  /// The size is ``standard``, or `least` if that is more, for generators, where the kernel does not say which pages
  /// were touched, and at further launch sites if 1,024 launch sites are measured.
  ///
  /// - Parameter least: The number of bytes that each of the stacks has at least.
  @inlinable public static func measured(atLeast least: Int) -> StackSize {
    StackSize(byteCount: max(1, least) | Int.min)
  }

  /// Whether the launch site determines the size: the highest bit.
  ///
  /// So the C core finds no size class for it, and launches of other sizes need not ask (StackRunner.swift).
  var isMeasured: Bool { byteCount < 0 }

  /// The size without what was measured.
  var leastBytes: Int { byteCount & Int.max }

  /// The size for what is not launched: `standard` at least, if it is to be measured.
  var unmeasured: StackSize { isMeasured ? .bytes(leastBytes).atLeast(.standard) : self }

  /// This size, or `other` if that is larger.
  package func atLeast(_ other: StackSize) -> StackSize {
    if isMeasured || other.isMeasured { return .measured(atLeast: max(leastBytes, other.leastBytes)) }
    return byteCount < other.byteCount ? other : self
  }

  /// `standard`, `bytes(4096)` or `measured(atLeast: 4096)`.
  public var description: String {
    if isMeasured { return "measured(atLeast: \(leastBytes))" }
    return self == .standard ? "standard" : "bytes(\(byteCount))"
  }
}
