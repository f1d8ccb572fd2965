#if Postgres
/// A value of a parameter.
///
/// Numbers, texts, bytes, dates and JSON are values; so are others by conformance.
///
/// ```swift
/// enum Mood: String, PostgresEncodable {
///   case happy, sad
///   func encode(into bytes: inout [UInt8]) { bytes += rawValue.utf8 }
/// }
/// ```
public protocol PostgresEncodable: Sendable {
  /// The type's number in the server (`pg_type.oid`); 0, the default: the server decides.
  static var postgresType: UInt32 { get }
  /// Appends the value in the binary format of its type; for most types of a program's own that is the text.
  ///
  /// Called when the statement is made; must not suspend.
  func encode(into bytes: inout [UInt8])
}

/// A value of a column.
///
/// Numbers, texts, bytes, dates and JSON are values; so are others by conformance.
public protocol PostgresDecodable: Sendable {
  /// Reads a value; throws a ``PostgresError`` of kind `.decoding` if it does not fit.
  ///
  /// - Parameters:
  ///   - bytes: The value; valid during the call alone.
  ///   - type: The type's number in the server (`pg_type.oid`).
  ///   - isText: Whether the bytes are the text format; otherwise they are the binary format.
  init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws
}

extension PostgresEncodable {
  /// Lets the server decide which type the value has.
  public static var postgresType: UInt32 { 0 }
}

extension PostgresEncodable where Self: RawRepresentable, RawValue: PostgresEncodable {
  /// Appends the raw value.
  public func encode(into bytes: inout [UInt8]) { rawValue.encode(into: &bytes) }
}

extension PostgresDecodable where Self: RawRepresentable, RawValue: PostgresDecodable {
  /// Reads the raw value; throws `.decoding` if there is no such case.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    let raw = try RawValue(postgres: bytes, type: type, isText: isText)
    guard let value = Self(rawValue: raw) else {
      throw PostgresError.misfit("no \(Self.self) has this raw value", type)
    }
    self = value
  }
}

extension Optional: PostgresDecodable where Wrapped: PostgresDecodable {
  /// Reads a value that is there; a null is decoded as nil, without this call.
  public init(postgres bytes: UnsafeRawBufferPointer, type: UInt32, isText: Bool) throws {
    self = .some(try Wrapped(postgres: bytes, type: type, isText: isText))
  }
}

/// A type that has a value for null: Optional.
protocol Nullable {
  static var null: Self { get }
}
extension Optional: Nullable {
  static var null: Wrapped? { nil }
}
#endif
