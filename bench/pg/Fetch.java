// Fetch.java URL QUERY: reads all rows twice, every column as its type, and prints the count and the seconds of
// the second time.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;

public class Fetch {
    public static void main(String[] args) throws Exception {
        try (Connection c = DriverManager.getConnection(args[0])) {
            c.setAutoCommit(false);
            long rows = 0;
            double seconds = 0;
            for (int round = 0; round < 2; round++) {
                long began = System.nanoTime();
                rows = read(c, args[1]);
                seconds = (System.nanoTime() - began) / 1e9;
            }
            System.out.println(rows + " " + seconds);
        }
    }

    static long read(Connection c, String query) throws Exception {
        long rows = 0;
        try (PreparedStatement s = c.prepareStatement(query)) {
            s.setFetchSize(10_000);
            try (ResultSet r = s.executeQuery()) {
                while (r.next()) {
                    r.getLong(1);
                    r.getString(2);
                    r.getDouble(3);
                    r.getTimestamp(4);
                    r.getBigDecimal(5);
                    r.getBoolean(6);
                    rows++;
                }
            }
        }
        c.commit();
        return rows;
    }
}
