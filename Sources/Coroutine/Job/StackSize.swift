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

  /// This size, or `other` if that is larger.
  package func atLeast(_ other: StackSize) -> StackSize { byteCount < other.byteCount ? other : self }

  /// `standard` or `bytes(4096)`.
  public var description: String { self == .standard ? "standard" : "bytes(\(byteCount))" }
}
