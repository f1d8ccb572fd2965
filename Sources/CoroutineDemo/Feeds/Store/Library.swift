#if Demo
import Foundation
import GRDB

/// The database: feeds, their items, and an index of the items' words.
///
/// All of it blocks. It is used by one at a time, the store's actor or the command `items`, on a thread that may wait.
struct Library: Sendable {
  let path: String
  let database: DatabaseQueue

  /// Opens the database, and makes it where there is none.
  ///
  /// `patience` is how long to wait for another program's lock.
  init(path: String, patience: TimeInterval = 3) throws(StoreFailure) {
    self.path = path
    do {
      var configuration = Configuration()
      configuration.busyMode = .timeout(patience)
      // Readers go on while one writes, and a commit waits for the disk less often.
      configuration.journalMode = .wal
      database = try DatabaseQueue(path: path, configuration: configuration)
      // Only where there is something to do: migrating takes the lock, and another program may be writing.
      let isCurrent = try database.read { try Self.migrator.hasCompletedMigrations($0) }
      if !isCurrent { try Self.migrator.migrate(database) }
    } catch {
      throw StoreFailure(path: path, error)
    }
  }

  /// Runs `body` in a transaction, and what it throws says which database it is about.
  func write<Output>(_ body: (Database) throws -> Output) throws(StoreFailure) -> Output {
    do {
      return try database.write(body)
    } catch {
      throw StoreFailure(path: path, error)
    }
  }

  func read<Output>(_ body: (Database) throws -> Output) throws(StoreFailure) -> Output {
    do {
      return try database.read(body)
    } catch {
      throw StoreFailure(path: path, error)
    }
  }

  private static var migrator: DatabaseMigrator {
    var migrator = DatabaseMigrator()
    migrator.registerMigration("feeds, items and their words") { database in
      try database.execute(
        sql: """
          CREATE TABLE feed (
            id INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,   -- the address, the path, or the built-in server's name for it
            title TEXT NOT NULL DEFAULT '',
            etag TEXT,                   -- what the site said of the version that was read to its end
            modified TEXT
          );
          CREATE TABLE item (
            id INTEGER PRIMARY KEY,
            feed INTEGER NOT NULL REFERENCES feed(id) ON DELETE CASCADE,
            identity TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL,
            link TEXT,
            author TEXT,
            published REAL,              -- seconds since 1970
            summary TEXT NOT NULL
          );
          CREATE INDEX item_by_date ON item(published);
          CREATE INDEX item_by_feed ON item(feed);
          CREATE VIRTUAL TABLE item_words USING fts5(title, summary, author, content='item', content_rowid='id');
          CREATE TRIGGER item_is_indexed AFTER INSERT ON item BEGIN
            INSERT INTO item_words(rowid, title, summary, author) VALUES (new.id, new.title, new.summary, new.author);
          END;
          """
      )
    }
    return migrator
  }

  /// `~/.cache/coroutine-demo/feeds.sqlite`, or where XDG_CACHE_HOME wants caches to be; the folder is made.
  static func defaultPath(_ environment: [String: String] = ProcessInfo.processInfo.environment) throws(StoreFailure)
    -> String
  {
    let caches: URL
    if let path = environment["XDG_CACHE_HOME"], path.hasPrefix("/") {
      caches = URL(filePath: path)
    } else {
      caches = FileManager.default.homeDirectoryForCurrentUser.appending(path: ".cache")
    }
    let folder = caches.appending(path: "coroutine-demo")
    let path = folder.appending(path: "feeds.sqlite").path(percentEncoded: false)
    do {
      try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    } catch {
      throw StoreFailure(path: path, kind: .cannotOpen)
    }
    return path
  }
}
#endif
