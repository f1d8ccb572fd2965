#if Demo
import Foundation

/// The feeds that the built-in server serves: real in shape, each with something that feeds in the wild have.
enum Catalogue {
  /// What the server does with a request, beside answering it.
  enum Manner: Equatable, Sendable {
    case plain
    /// Compressed, where the client takes that.
    case packed
    /// A few bytes at a time.
    case slow
    /// Announces all of it, sends half, and closes the connection.
    case closesMidway
    /// Sends the client elsewhere, more than once.
    case moved(to: String)
    case missing
    /// Made up while it is sent: see ArchiveFeed.
    case archive
  }

  struct Entry: Equatable, Sendable {
    var name: String
    var type = "application/rss+xml"
    var manner = Manner.plain
    /// How the site tells versions apart; a client that has one is answered "not modified".
    var etag: String?
    var modified: String?
    /// Whether it cannot be read to its end, whatever the reader does.
    var isFaulty = false
  }

  static let all = [
    // CDATA, full texts beside summaries, entities.
    Entry(name: "planet.xml", manner: .packed, etag: "\"planet-7\""),
    // Atom: XHTML, relative links, several links an entry.
    Entry(
      name: "releases.atom",
      type: "application/atom+xml",
      etag: "W/\"r41\"",
      modified: "Sat, 14 Mar 2026 09:26:53 GMT"
    ),
    // Half of it is in planet.xml as well.
    Entry(name: "mirror.xml", etag: "\"mirror-7\""),
    // ISO-8859-1.
    Entry(name: "zeitung.xml", modified: "Mon, 02 Mar 2026 05:30:00 GMT"),
    // windows-1252, and HTML's entities as if XML had them.
    Entry(name: "courrier.xml"),
    // Shift_JIS.
    Entry(name: "shimbun.xml", etag: "\"s-1\""),
    // Atom in UTF-16, every element with a prefix.
    Entry(name: "notes.atom", type: "application/atom+xml"),
    // In KOI8-R, as only the answer's Content-Type says; white space before everything.
    Entry(name: "gazeta.xml", type: "text/xml; charset=koi8-r"),
    // Items without a title, a link, a date, a name, or all of these.
    Entry(name: "sparse.xml"),
    // Enclosures and elements of other vocabularies.
    Entry(name: "podcast.xml", manner: .slow, etag: "\"ep-12\""),
    Entry(name: "weather.xml", manner: .moved(to: "forecast/today.xml")),
    // 20 MB.
    Entry(name: "archive.xml", manner: .archive, etag: "\"archive-1\""),
    Entry(name: "broken.xml", isFaulty: true),
    Entry(name: "halfway.xml", manner: .closesMidway, isFaulty: true),
    Entry(name: "gone.xml", manner: .missing, isFaulty: true),
  ]

  /// What the server's feeds are called in the database, where addresses would not do: the port changes.
  static func sources(at server: URL) -> [Source] {
    all.map { Source(name: "demo:\($0.name)", url: server.appending(path: $0.name)) }
  }

  /// Whether the feed of that name is there to show a fault.
  static func isFaulty(_ source: String) -> Bool {
    all.contains { $0.isFaulty && source == "demo:\($0.name)" }
  }

  /// A feed as it is shipped, byte for byte.
  static func sample(_ name: String) throws -> Data {
    try Data(contentsOf: Bundle.module.bundleURL.appending(path: "Samples").appending(path: name))
  }
}
#endif
