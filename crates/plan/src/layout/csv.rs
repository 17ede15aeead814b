/// x
pub struct Table;
/// x
pub struct CsvError;
